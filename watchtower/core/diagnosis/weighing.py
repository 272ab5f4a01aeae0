"""Turns weighed evidence into a confidence.

Weights are probabilities of pieces that are independent by family (the evidence's `source`): inside
a family only the strongest counts, families combine as noisy-or. A contradiction halves the result,
evidence that could not be had caps it.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from watchtower.wire.verdict import Evidence

MIN_CONFIDENCE = 0.5
"""Below it the verdict is `unknown`, with what was found as alternatives."""

MISSING_CEILING = 0.85
"""Ceiling while some rank's stack is missing: that rank may be the one."""

UNBEATEN_CEILING = 0.85
"""Ceiling while no rank has a heartbeat page: that nothing goes on is then inferred from looks."""

DOUBT_CEILING = 0.45
"""Ceiling of a finding that names candidates, not a culprit."""

MAX_CONFIDENCE = 0.99
"""Nothing seen from outside a process is certain."""


def weigh(evidence: Iterable[Evidence], *, contradictions: int = 0, ceiling: float = 1.0) -> float:
    """Combine evidence into a confidence between 0 and `MAX_CONFIDENCE`."""
    families: dict[str, float] = {}
    for item in evidence:
        families[item.source] = max(families.get(item.source, 0.0), item.weight)
    combined = 1 - prod(1 - weight for weight in families.values())
    return round(min(combined * 0.5**contradictions, ceiling, MAX_CONFIDENCE), 2)
