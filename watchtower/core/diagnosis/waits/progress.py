"""Ranks that hold up no call although others seem to wait: they called it, or have gone on.

On NCCL a thread runs ahead of its GPU: where the thread is shows nothing of a call queued before.

Dumps of ranks are not taken at one moment. In a job that is slow and not hung, the rank that was
dumped first is in no collective that the others are in, and all ranks have gone on since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from watchtower.core.diagnosis.position import Position
from watchtower.core.diagnosis.waits.collective_logs import CollectiveLogs
from watchtower.core.diagnosis.waits.points import WaitPoint


def find_without_fault(
    points_of: Mapping[int, Sequence[WaitPoint]],
    by_rank: Mapping[int, Position],
    logs: CollectiveLogs,
) -> frozenset[int]:
    """Find ranks that hold up none of the points which they seem to hold up.

    `points_of`: by rank, the points that it seems to hold up.
    """
    points = {id(point): point for each in points_of.values() for point in each}
    real = {key for key, point in points.items() if _is_waited_in(point, by_rank, logs)}
    return frozenset(
        rank
        for rank, each in points_of.items()
        if not any(id(p) in real and _may_hold_up(rank, p, logs) for p in each)
        or _goes_on(rank, each, by_rank, logs)
    )


def _is_waited_in(point: WaitPoint, by_rank: Mapping[int, Position], logs: CollectiveLogs) -> bool:
    waiting = (by_rank[rank] for rank in point.waiting if rank in by_rank)
    return any(_stayed(item, point, logs) for item in waiting)


def _may_hold_up(rank: int, point: WaitPoint, logs: CollectiveLogs) -> bool:
    """Return whether a rank has not called yet. After its call its thread holds up no rank."""
    log = logs.log_of(rank, point.group.id) if point.group else None
    return log is None or log.called < point.number


def _goes_on(
    rank: int, points: Sequence[WaitPoint], by_rank: Mapping[int, Position], logs: CollectiveLogs
) -> bool:
    """Return whether a rank gets on in any point that others wait for it in.

    It is then on its way to the other points too. Progress in a group where no rank waits for it,
    of another thread or of its own, shows nothing.
    """
    own = by_rank.get(rank)
    return own is not None and not all(_stayed(own, point, logs) for point in points)


def _stayed(position: Position, point: WaitPoint, logs: CollectiveLogs) -> bool:
    """Return whether two dumps show a rank at one place in what this point is about.

    True with fewer than two dumps: nothing shows that it has gone on.
    """
    taken = [dump.collectives for dump in position.evidence.dumps if dump.collectives]
    known = [each for each in taken if each.logs or each.peers][-2:]
    if len(known) < 2:
        return True
    before, after = known
    if point.group is not None:
        own = (logs.by_digest[digest] for digest in after.logs if digest in logs.by_digest)
        return all(log.digest in before.logs for log in own if log.group == point.group.id)
    ends = {*point.waiting, *point.held_up_by}
    was, now = ([row for row in each.peers if row.peer in ends] for each in known)
    return was == now
