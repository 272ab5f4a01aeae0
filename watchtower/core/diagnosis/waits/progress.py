"""Says what speaks against that the others wait for a rank: it has called, or all have gone on.

On NCCL a thread runs ahead of its GPU: where it is tells nothing of a call handed in before.

Dumps of ranks are not taken at one moment. In a job that is slow and not hung, the rank that was
dumped first is in no collective that the others are in, and everybody has gone on since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from watchtower.core.diagnosis.position import Position
from watchtower.core.diagnosis.waits.collective_logs import Records
from watchtower.core.diagnosis.waits.points import WaitPoint


def find_refuted(
    points_of: Mapping[int, Sequence[WaitPoint]],
    by_rank: Mapping[int, Position],
    records: Records,
) -> frozenset[int]:
    """Find ranks that keep none of the points which they seem to keep."""
    points = {id(point): point for each in points_of.values() for point in each}
    real = {key for key, point in points.items() if _is_waited_in(point, by_rank, records)}
    return frozenset(
        rank
        for rank, each in points_of.items()
        if not any(id(p) in real and _may_keep(rank, p, records) for p in each)
        or _goes_on(rank, each, by_rank, records)
    )


def _is_waited_in(point: WaitPoint, by_rank: Mapping[int, Position], records: Records) -> bool:
    waiting = (by_rank[rank] for rank in point.waiting if rank in by_rank)
    return any(_stayed(item, point, records) for item in waiting)


def _may_keep(rank: int, point: WaitPoint, records: Records) -> bool:
    """Tell whether a rank has not called; what its thread does since it has keeps nobody."""
    log = records.log_of(rank, point.group.id) if point.group else None
    return log is None or log.called < point.number


def _goes_on(
    rank: int, points: Sequence[WaitPoint], by_rank: Mapping[int, Position], records: Records
) -> bool:
    """Tell whether a rank gets on in any of what others wait for it in.

    It is then on its way to the rest too. That it gets on in a group where nobody waits for it, of
    another thread or of its own, says nothing.
    """
    own = by_rank.get(rank)
    return own is not None and not all(_stayed(own, point, records) for point in points)


def _stayed(position: Position, point: WaitPoint, records: Records) -> bool:
    """Tell whether two dumps show a rank at one place in what this point is about.

    With fewer than two nothing is known, and nothing refuted.
    """
    taken = [dump.collectives for dump in position.evidence.dumps if dump.collectives]
    told = [each for each in taken if each.logs or each.peers][-2:]
    if len(told) < 2:
        return True
    before, after = told
    if point.group is not None:
        logs = (records.logs[digest] for digest in after.logs if digest in records.logs)
        return all(log.digest in before.logs for log in logs if log.group == point.group.id)
    ends = {*point.waiting, *point.held_up_by}
    was, now = ([row for row in each.peers if row.peer in ends] for each in told)
    return was == now
