"""Ranks that cannot continue, as their node observed: a stall before any step is overdue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from watchtower.evidence.observed import Observed
from watchtower.evidence.xids import FAULTS, find_gpu_errors
from watchtower.fleet.generation import RankRecord
from watchtower.fleet.node import NodeRecord

FATAL = FAULTS
"""Families of observations that stop a rank at once. The end of a process is a death, which the
detector sees by itself."""


def find_fatal_errors(
    records: Sequence[RankRecord], nodes: Mapping[str, NodeRecord], now: float
) -> dict[int, float]:
    """Return when an error occurred that stops a rank, by rank. The first one counts."""
    # Most nodes have observations and none of these: a large job has thousands of nodes.
    observed: dict[str, Observed] = {}
    for name in {record.key.node for record in records}:
        node = nodes.get(name)
        if node and any(each.name.startswith(FATAL) for each in node.observations.items):
            observed[name] = Observed(node.observations.aged(now))
    found: dict[int, float] = {}
    for record in records if observed else ():
        seen = observed.get(record.key.node)
        errors = find_gpu_errors(seen.about(record.key.pid, FATAL)) if seen is not None else ()
        if errors:
            found[record.vitals.rank] = now - errors[0].age_s
    return found
