"""Builds snapshots of imagined nodes, as `watchtower-agent snapshot` writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from tests.diagnosis.builders import Built
from watchtower.wire.dumps import DumpBatch
from watchtower.wire.report import Beat, RankVitals, Report
from watchtower.wire.snapshot import SNAPSHOT_FORMAT, Snapshot

GAP_S = 3.0
TAKEN_AT = 1_795_363_392.0


def a_snapshot(
    built: Sequence[Built],
    *,
    node: str = "",
    job: str = "llama",
    size: int | None = None,
    taken_at: float = TAKEN_AT,
    beats: Mapping[int, Sequence[Beat | None]] | None = None,
    owner: str = "uid:1000",
) -> Snapshot:
    """Return the snapshot of one node. `beats`: those of both reports, by rank."""
    node = node or built[0].evidence.node

    def report(number: int) -> Report:
        return Report(
            version=1,
            node=node,
            agent_id=f"a-{node}",
            interval_s=GAP_S,
            ranks=tuple(_vitals(each, number, job, size, owner, beats or {}) for each in built),
        )

    return Snapshot(
        format=SNAPSHOT_FORMAT,
        watchtower="0.1.0",
        node=node,
        taken_at=taken_at,
        gap_s=GAP_S,
        reports=(report(0), report(1)),
        dumps=tuple(
            DumpBatch(
                version=1,
                id=f"{job}-{node}-{number}",
                node=node,
                job=job,
                owner=owner,
                round=number + 1,
                reason="snapshot",
                held_s=GAP_S * (1 - number),
                ranks=tuple(each.evidence.dumps[number] for each in built),
                stacks=tuple(
                    {stack.digest: stack for each in built for stack in each.stacks}.values()
                ),
            )
            for number in (0, 1)
        ),
    )


def _vitals(
    built: Built,
    number: int,
    job: str,
    size: int | None,
    owner: str,
    beats: Mapping[int, Sequence[Beat | None]],
) -> RankVitals:
    evidence = built.evidence
    beat = beats[evidence.rank][number] if evidence.rank in beats else evidence.beat
    return RankVitals(
        job=job,
        owner=owner,
        rank=evidence.rank,
        pid=evidence.pid or 0,
        start_time=1,
        world_size=size,
        beat=beat,
        state=evidence.state,
        movement=evidence.movement,
        found_age_s=number * GAP_S,
    )


def merge(*snapshots: Snapshot) -> Snapshot:
    """Return one snapshot of several jobs of the same node."""
    first = snapshots[0]
    reports = tuple(
        replace(
            first.reports[number],
            ranks=tuple(rank for each in snapshots for rank in each.reports[number].ranks),
        )
        for number in (0, 1)
    )
    dumps = tuple(batch for each in snapshots for batch in each.dumps)
    return replace(first, reports=reports, dumps=dumps)


def as_line(snapshot: Snapshot) -> bytes:
    """Return the snapshot as its file."""
    return msgspec.json.encode(snapshot) + b"\n"
