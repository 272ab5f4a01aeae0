"""A case of a job at any moment, also if the job is not suspect."""

from __future__ import annotations

from collections.abc import Mapping

from watchtower.fleet.generation import Generation
from watchtower.fleet.node import NodeRecord
from watchtower.jobs.case_inputs import CaseInputs, collect_case_inputs
from watchtower.jobs.condition import Stall, Why
from watchtower.jobs.detector import Detector


def collect_on_demand(
    gen: Generation,
    nodes: Mapping[str, NodeRecord],
    detector: Detector,
    fresh_since: float,
    now: float,
    known: Stall | None = None,
) -> CaseInputs:
    """Copy the evidence about a generation.

    The case contains the dumps since the oldest last heartbeat, or since the first dump of a live
    rank at or after `fresh_since` if that is earlier. `known`: its stall, if it is stalled; then
    its dumps since that are in the case too.
    """
    dumps = (at for record in gen.live() for at, _ in record.dumps if at >= fresh_since)
    dumped_at, beat_at = min(dumps, default=now), gen.last_beat_of_all()
    since = dumped_at if beat_at is None else min(beat_at, dumped_at)
    since = since if known is None else min(since, known.since)
    stall = Stall(why=Why.OVERDUE, since=since, ranks=frozenset())
    return collect_case_inputs(gen, nodes, detector, stall, None, now)
