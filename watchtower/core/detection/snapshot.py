"""Takes the case: everything known of a job at one moment, frozen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from watchtower.core.case import Case, NodeEvidence, Presence, RankEvidence
from watchtower.core.case_inputs import CaseInputs, DumpPlace, age_beat
from watchtower.core.detection.census import Census
from watchtower.core.detection.detector import Detector, Stall
from watchtower.core.fleet.generation import DumpBody, Generation, NodeRecord, RankRecord
from watchtower.wire.report import Ending


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """Everything a case is made of, held still: what comes in later does not change it.

    A sketch takes a hundredth of the time of its case, so that the case can be made elsewhere.
    """

    job: str
    generation: int
    world_size: int
    missing: tuple[int, ...]
    typical_step_s: float
    slowdown: float
    records: tuple[RankRecord, ...]
    rivals: Mapping[int, Sequence[str]]
    nodes: Mapping[str, NodeRecord]
    tallies: Mapping[int, tuple[int, int]]
    """Of a slow job: looks and waits by rank."""
    detector: Detector
    since: float
    evidence_since: float
    """Dumps from before the trouble are left out."""
    now: float

    @property
    def stalled_for_s(self) -> float:
        """For how long the job has not moved."""
        return max(0.0, self.now - self.since)


def sketch_case(
    gen: Generation,
    nodes: Mapping[str, NodeRecord],
    detector: Detector,
    stall: Stall | None,
    census: Census | None,
    now: float,
) -> Sketch:
    """Hold still what is known of a generation: in a stall, at its end, or slow (`census`)."""
    since = stall.since if stall else now
    rivals: dict[int, list[str]] = {}
    for key, (vitals, _) in gen.rivals.items():
        rivals.setdefault(vitals.rank, []).append(f"{key.node} pid {key.pid}")
    tallies = census.tallies if census else {}
    return Sketch(
        job=gen.job,
        generation=gen.number,
        world_size=gen.world_size,
        missing=gen.missing_ranks(),
        typical_step_s=gen.pace("").typical_s,
        slowdown=gen.pace("").slowdown if census else 1.0,
        records=tuple(record.copy() for record in gen.ranks.values()),
        rivals=rivals,
        nodes=dict(nodes),
        tallies={rank: (tally.looks, tally.waits) for rank, tally in tallies.items()},
        detector=detector,
        since=since,
        evidence_since=census.since if census else since,
        now=now,
    )


def draw_up(sketch: Sketch) -> tuple[CaseInputs, list[bytes]]:
    """Make the inputs of a case from a sketch, and the bodies that its dumps are in."""
    bodies: dict[DumpBody, int] = {}
    places = [
        DumpPlace(
            record.vitals.rank,
            record.key.pid,
            record.key.start_time,
            bodies.setdefault(body, len(bodies)),
        )
        for record in sketch.records
        for taken_at, body in record.dumps
        if taken_at >= sketch.evidence_since
    ]
    inputs = CaseInputs(case=_make_case(sketch), dumps=tuple(places))
    return inputs, [body.body for body in bodies]


def _make_case(sketch: Sketch) -> Case:
    now, nodes = sketch.now, sketch.nodes
    by_rank = {record.vitals.rank: record for record in sketch.records}
    known = sorted([*by_rank, *sketch.missing])
    ranks = tuple(_rank_evidence(rank, by_rank.get(rank), sketch) for rank in known)
    ranks = tuple(_with_more(item, sketch) for item in ranks)
    names = {record.key.node for record in sketch.records}
    if sketch.missing:
        # An agent without rights sees no rank of another user: the missing ones may run there.
        names |= {name for name, node in nodes.items() if node.limits.process}
    return Case(
        job=sketch.job,
        generation=sketch.generation,
        world_size=sketch.world_size,
        typical_step_s=sketch.typical_step_s,
        stalled_for_s=sketch.stalled_for_s,
        settle_s=sketch.detector.policy.settle_s,
        moving_cpu_cores=sketch.detector.policy.moving_cpu_cores,
        ranks=ranks,
        nodes=tuple(_node_evidence(name, nodes.get(name), now) for name in sorted(names)),
        slowdown=sketch.slowdown,
    )


def is_dumped_since(record: RankRecord, since: float) -> bool:
    """Whether a dump of a rank was taken during the stall that began at `since`."""
    return bool(record.dumps) and record.dumps[-1][0] >= since


def _rank_evidence(rank: int, record: RankRecord | None, sketch: Sketch) -> RankEvidence:
    if record is None:
        return RankEvidence(rank=rank, presence=Presence.MISSING)
    vitals = record.vitals
    presence = Presence.ENDED
    if record.is_live:
        is_seen = sketch.detector.is_seen(record, sketch.nodes, sketch.now)
        presence = Presence.LIVE if is_seen else Presence.SILENT
    return RankEvidence(
        rank=rank,
        presence=presence,
        node=record.key.node,
        pid=vitals.pid,
        local_rank=vitals.local_rank,
        beat=age_beat(vitals.beat, sketch.now - record.seen_at),
        state=vitals.state,
        wchan=vitals.wchan,
        movement=vitals.movement,
        ended=_aged_ending(vitals.ended, record.ended_at, sketch.now),
    )


def _with_more(evidence: RankEvidence, sketch: Sketch) -> RankEvidence:
    if evidence.rank in sketch.rivals:
        evidence = replace(evidence, rivals=tuple(sketch.rivals[evidence.rank]))
    if evidence.rank in sketch.tallies:
        looks, waits = sketch.tallies[evidence.rank]
        evidence = replace(evidence, looks=looks, waits=waits)
    return evidence


def _aged_ending(ended: Ending | None, ended_at: float | None, now: float) -> Ending | None:
    if ended is None or ended_at is None:
        return None
    return replace(ended, age_s=max(0.0, now - ended_at))


def _node_evidence(name: str, node: NodeRecord | None, now: float) -> NodeEvidence:
    if node is None:
        return NodeEvidence(node=name, silent_for_s=0.0)
    return NodeEvidence(
        node=name,
        silent_for_s=now - node.seen_at,
        interval_s=node.interval_s,
        limits=node.limits,
    )
