"""Wait points: collectives and messages that ranks are blocked in, and the ranks that are missing.

A rank has come to a point, has not come, or it is unknown. It is unknown where the counts of the
rank cannot cover the call: then it is not certain that this rank holds up others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from watchtower.diagnosis.waits.collective_logs import CollectiveLogs, Group
from watchtower.evidence.collective_log import Entered, OpenCall
from watchtower.wire.bounds import MAX_PEERS
from watchtower.wire.collectives import ANY_PEER, PeerTransfers
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import clean

UNCOUNTED = -1
"""How often a peer called is not known."""

MAX_OPEN = 8
"""Wait points of one group. Its ranks are in one or two calls. More calls are made up by a process,
and each costs as much as the group has members."""


MAX_MEMBERS = 6
"""Members of a group that are listed beside its name."""


class PointKind(Enum):
    """The kinds of wait points."""

    COLLECTIVE = "collective"
    RECEIVE = "receive"
    """A receiver waits for the sender's message."""
    SEND = "send"
    """A sender waits for its receiver to take the message."""


@dataclass(frozen=True, slots=True)
class WaitPoint:
    """Something that ranks are blocked in, and the ranks that have not come to it."""

    kind: PointKind
    number: int
    operation: str
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    """Ranks that are known not to have entered."""
    unknown: tuple[int, ...]
    """Ranks of which it is unknown whether they have."""
    group: Group | None = None
    """Null for messages between two ranks."""
    certain: bool = True
    """The ranks that wait are known to have entered, not only to have called."""

    @property
    def held_up_by(self) -> tuple[int, ...]:
        """Ranks it waits for: the missing ones; if there are none, the unknown ones."""
        return self.missing or self.unknown


def collective_points(
    logs: CollectiveLogs, free: frozenset[int], absent: frozenset[int], *, in_order: bool
) -> Iterator[WaitPoint]:
    """Yield the points of all collectives that some rank is blocked in.

    `free` ranks are not blocked in any call, `absent` ranks cannot enter any. `in_order`: a rank
    executes its calls in the order in which it made them, so it is blocked in the oldest open one
    and has not come to those after it.
    """
    for name, by_log in logs.in_group.items():
        group = logs.groups[name]
        opened: dict[int, list[str]] = {}
        doubtful: set[int] = set()
        reached = logs.find_reached(name)
        for digest in by_log:
            found = logs.by_digest[digest].find_open_call(reached)
            if found is not None:
                opened.setdefault(found.number, []).append(digest)
                doubtful.update(() if found.certain else (found.number,))
        silent: tuple[int, ...] | None = None
        waits = {
            number: [
                rank
                for digest in digests
                for rank in by_log[digest]
                if rank not in free and not (in_order and logs.is_queued(rank, name))
            ]
            for number, digests in opened.items()
        }
        for number in _most_waited(waits):
            waiting = waits[number]
            if silent is None:
                heard = {rank for ranks in by_log.values() for rank in ranks}
                silent = tuple(rank for rank in group.members if rank not in heard)
            call = OpenCall(number, certain=number not in doubtful)
            yield _collective_point(logs, group, call, waiting, silent, absent, in_order)


def _most_waited(waits: Mapping[int, Sequence[int]]) -> list[int]:
    """Return at most MAX_OPEN numbers, those that most ranks wait in, in ascending order."""
    numbers = [number for number, ranks in waits.items() if ranks]
    return sorted(sorted(numbers, key=lambda number: (-len(waits[number]), number))[:MAX_OPEN])


def _collective_point(
    logs: CollectiveLogs,
    group: Group,
    call: OpenCall,
    waiting: Sequence[int],
    silent: Sequence[int],
    absent: frozenset[int],
    in_order: bool,
) -> WaitPoint:
    missing: list[int] = []
    unknown: list[int] = []
    there = frozenset(waiting)
    number, certain, operation = call.number, call.certain, ""
    for digest, ranks in logs.in_group[group.id].items():
        log = logs.by_digest[digest]
        entered = log.has_entered(number)
        if ranks[0] in there or there.intersection(ranks):
            operation = operation or log.record_of(number).operation
            certain = certain and entered is Entered.YES
        if entered is Entered.NO:
            missing += ranks
        elif entered is Entered.UNKNOWN:
            queued = {rank for rank in ranks if in_order and logs.is_queued(rank, group.id)}
            missing += queued
            unknown += [rank for rank in ranks if rank not in there and rank not in queued]
    for rank in silent:
        (missing if rank in absent else unknown).append(rank)
    return WaitPoint(
        kind=PointKind.COLLECTIVE,
        number=number,
        operation=operation,
        waiting=tuple(sorted(waiting)),
        missing=tuple(sorted(missing)),
        unknown=tuple(sorted(unknown)),
        group=group,
        certain=certain,
    )


def transfer_points(
    logs: CollectiveLogs, free: frozenset[int], absent: frozenset[int]
) -> Iterator[WaitPoint]:
    """Yield the points of all messages that some rank is blocked in; ranks as above."""
    for rank, rows in logs.transfers.items():
        if rank in free:
            continue
        for row in rows:
            if row.peer < 0:
                continue
            if row.receives_begun > row.receives_done:
                came = _count_sends(logs, row, rank)
                yield _transfer_point(
                    PointKind.RECEIVE, "recv", rank, row.peer, row.receives_done + 1, came, absent
                )
            if row.sends_begun > row.sends_done:
                came = _count_receives(logs, row, rank)
                yield _transfer_point(
                    PointKind.SEND, "send", rank, row.peer, row.sends_done + 1, came, absent
                )


def _count_sends(logs: CollectiveLogs, row: PeerTransfers, rank: int) -> int:
    """Count the sends of a row's peer to `rank`; UNCOUNTED when its counts cannot be all of them.

    Only blocking calls are counted. A rank that has received more than its peer counts as sent was
    served by another kind of send, and its next message may come that way too.
    """
    rows = logs.transfers.get(row.peer, ())
    theirs = logs.transfers_with(row.peer, rank)
    if not any(each.sends_begun for each in rows) or (theirs is None and len(rows) >= MAX_PEERS):
        return UNCOUNTED
    count = theirs.sends_begun if theirs else 0
    return UNCOUNTED if count < row.receives_done else count


def _count_receives(logs: CollectiveLogs, row: PeerTransfers, rank: int) -> int:
    """Count the receives of a row's peer from `rank`, UNCOUNTED as for sends.

    A receive from any peer may be one from `rank`.
    """
    rows = logs.transfers.get(row.peer, ())
    theirs = logs.transfers_with(row.peer, rank)
    if any(each.peer == ANY_PEER and each.receives_begun for each in rows):
        return UNCOUNTED
    if not any(each.receives_begun for each in rows) or (theirs is None and len(rows) >= MAX_PEERS):
        return UNCOUNTED
    count = theirs.receives_begun if theirs else 0
    return UNCOUNTED if count < row.sends_done else count


def _transfer_point(
    kind: PointKind,
    operation: str,
    rank: int,
    peer: int,
    number: int,
    came: int,
    absent: frozenset[int],
) -> WaitPoint:
    """Return the point of one message; `came` counts the calls of the peer."""
    known = came != UNCOUNTED or peer in absent
    return WaitPoint(
        kind=kind,
        number=number,
        operation=operation,
        waiting=(rank,),
        missing=(peer,) if known and came < number else (),
        unknown=() if known else (peer,),
    )


def describe_group(group: Group) -> str:
    """Return "group tensor_parallel (ranks 2-3)"."""
    ranks = name_ranks(group.members) if len(group.members) <= MAX_MEMBERS else ""
    size = ranks or f"{len(group.members)} ranks"
    name = clean(group.name, 40)
    return f"group {name} ({size})" if name else f"the group of {size}"


def name_point(point: WaitPoint) -> str:
    """Return "all_reduce number 41 of group tensor_parallel (ranks 2-3)", or "recv number 41"."""
    operation = clean(point.operation, 60) or "collective"
    where = "" if point.group is None else f" of {describe_group(point.group)}"
    return f"{operation} number {point.number}{where}"
