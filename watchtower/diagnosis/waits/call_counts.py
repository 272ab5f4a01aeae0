"""How often each rank has called what, and the law that these counts obey.

Ranks of one program make the same calls in the same order, so their counts form a chain: of two
ranks, the one that is further on has called at least as much of everything. A rank that leaves a
call out, makes it twice or makes it in a wrong group breaks the chain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum

from watchtower.diagnosis.waits.collective_logs import CollectiveLogs, Group, name_kind

ONE_CALL = 1
"""How much a count differs after a call is left out or made twice in this step. Groups that some
ranks use more often for good reason are further apart after a few steps."""

SEND, RECEIVE = "send", "recv"

Role = tuple[str, int, str]
"""Common to groups of one kind: the name without its numbers, the size, and the shape where a group
has one. "tp3" of four ranks has the role of "tp0". The role of messages is SEND or RECEIVE, and the
number of peers."""

CallCounts = Mapping[Role, int]
"""How many calls a rank has made in all of its groups of each role."""


class Relation(Enum):
    """The places of two ranks in their program, as far as they are known."""

    SAME = "at the same call"
    BEHIND = "has not come to the call that the other is in"
    UNKNOWN = "at different calls"


def find_break(own: CallCounts, other: CallCounts, relation: Relation) -> tuple[Role, int] | None:
    """Return the count by which `own` breaks the chain beside `other`, and by how much it differs.

    Null where the chain holds, and where no single count that differs by one call breaks it.
    """
    differing = list(differences(own, other))
    if relation is Relation.BEHIND:
        differing = [(role, by) for role, by in differing if by > 0]
    elif relation is Relation.UNKNOWN:
        differing = _find_minority(differing)
    return next(((role, by) for role, by in differing if abs(by) == ONE_CALL), None)


def _find_minority(differing: Sequence[tuple[Role, int]]) -> list[tuple[Role, int]]:
    """Return the counts that differ in another direction than all others which differ."""
    ahead = [(role, by) for role, by in differing if by > 0]
    behind = [(role, by) for role, by in differing if by < 0]
    if not ahead or not behind:
        return []
    return [side[0] for side in (behind, ahead) if len(side) == 1]


def are_comparable(own: CallCounts, other: CallCounts) -> bool:
    """Return whether two ranks fit into one chain: one of them is ahead in no count.

    Ranks with groups of different roles run different programs: nothing compares them.
    """
    if own.keys() != other.keys():
        return True
    signs = {by > 0 for _, by in differences(own, other)}
    return len(signs) < 2


def differences(own: CallCounts, other: CallCounts) -> Iterator[tuple[Role, int]]:
    """Yield the counts that both have and that differ, and by how much `own` is ahead."""
    for role, count in own.items():
        if role in other and count != other[role]:
            yield role, count - other[role]


def find_agreed(counts: Sequence[CallCounts]) -> CallCounts:
    """Return the counts that all of these share."""
    return {
        role: count
        for role, count in counts[0].items()
        if all(other.get(role) == count for other in counts)
    }


def count_calls(logs: CollectiveLogs, rank: int) -> dict[Role, int]:
    """Count the calls of a rank in its groups of each role."""
    counts: dict[Role, int] = defaultdict(int)
    for log in logs.logs_of(rank):
        counts[role_of(logs.groups[log.group])] += log.called
    return dict(counts)


def count_calls_and_messages(logs: CollectiveLogs, rank: int) -> dict[Role, int]:
    """Count messages as well. Only ranks of one pipeline stage have these in common."""
    counts = count_calls(logs, rank)
    rows = logs.transfers.get(rank, ())
    if rows:
        counts[SEND, len(rows), ""] = sum(row.sends_begun for row in rows)
        counts[RECEIVE, len(rows), ""] = sum(row.receives_begun for row in rows)
    return counts


def exchange_messages(logs: CollectiveLogs, members: Collection[int]) -> bool:
    """Return whether some of these ranks send each other messages, as pipeline stages do.

    Each stage of a pipeline runs a program of its own, so its counts belong to another chain.
    """
    return any(row.peer in members for rank in members for row in logs.transfers.get(rank, ()))


def role_of(group: Group) -> Role:
    """Return what a group has in common with others of its kind."""
    return name_kind(group), len(group.members), group.shape
