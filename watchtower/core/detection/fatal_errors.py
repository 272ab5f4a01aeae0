"""Ranks that cannot continue, as their node observed: a stall before any step is overdue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from watchtower.core.fleet.generation import RankRecord
from watchtower.core.fleet.node import NodeRecord
from watchtower.core.reading.observed import Observed
from watchtower.core.reading.xids import FAULTS, find_gpu_errors

FATAL = FAULTS
"""Families of observations that stop a rank at once. The end of a process is a death, which the
detector sees by itself."""


def find_fatal_errors(
    records: Iterable[RankRecord], nodes: Mapping[str, NodeRecord], now: float
) -> dict[int, float]:
    """Return when an error occurred that stops a rank, by rank. The first one counts."""
    found: dict[int, float] = {}
    observed: dict[str, Observed | None] = {}
    for record in records:
        name = record.key.node
        if name not in observed:
            node = nodes.get(name)
            # Most nodes have observations and none of these: a large job has thousands of nodes.
            has_any = node and any(i.name.startswith(FATAL) for i in node.observations.items)
            observed[name] = Observed(node.observations.aged(now)) if node and has_any else None
        seen = observed[name]
        errors = find_gpu_errors(seen.about(record.key.pid, FATAL)) if seen is not None else ()
        if errors:
            found[record.vitals.rank] = now - errors[0].age_s
    return found
