"""Tells a rank that is one call off from its neighbours by how often each has called what.

Ranks of one program are at places of one way, so two laws hold of their counts. Those who wait at
the same point have called as much in groups of equal role. And of two ranks at different places the
one that is ahead in some count is behind in none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from watchtower.core.diagnosis.waits.collective_logs import (
    Group,
    Records,
    name_kind,
)
from watchtower.core.diagnosis.waits.graph import End
from watchtower.core.diagnosis.waits.points import PointKind, WaitPoint
from watchtower.core.diagnosis.waits.positions import Positions
from watchtower.core.reading.collective_log import CallKind, compared

ONE_CALL = 1
"""How far a count is off by a call left out or made twice in this step. Groups that some ranks use
more often for good reason are further apart after a few steps."""

Role = tuple[str, int, str]
"""Name of a group without its numbers, size, and shape where it has one: "tp3" of four ranks has
the role of "tp0". Of messages: their direction, and the number of peers."""

Tally = Mapping[Role, int]
"""How many calls a rank has made in all of its groups of each role."""


def find_off(
    positions: Positions, records: Records, end: End, candidates: Sequence[int]
) -> dict[int, str]:
    """Find the candidates whose counts break a law beside ranks that are not under suspicion.

    Gives a clause about each, such as "it has made 81 calls in its groups of 2 ranks, ...".
    """
    off: dict[int, str] = {}
    for law in (_compare_at_points, _compare_ways):
        for rank, how in law(positions, records, end, candidates):
            off.setdefault(rank, how)
        if off:
            break
    return off


def ask_siblings(records: Records, group: str, number: int) -> CallKind | None:
    """Give what all other groups of equal role called as this number; null if they differ."""
    role = role_of(records.groups[group])
    called = {
        compared(record, records.groups[name].library)
        for name, by_log in records.in_group.items()
        if name != group and role_of(records.groups[name]) == role
        for digest in by_log
        for record in records.logs[digest].records
        if record.number == number
    }
    return called.pop() if len(called) == 1 else None


def _compare_at_points(
    positions: Positions, records: Records, end: End, candidates: Sequence[int]
) -> Iterator[tuple[int, str]]:
    """Compare with those at one point: who has not come to it has called no more than they."""
    assert positions.graph is not None
    suspected = set(candidates)
    for point in positions.graph.points:
        if point.kind is not PointKind.COLLECTIVE:
            continue
        there = suspected.intersection(point.waiting)
        late = suspected.intersection(point.missing)
        fellows = [rank for rank in point.waiting if rank not in suspected]
        if not fellows or not (there or late):
            continue
        usual = _agreed(records, fellows)
        for rank in sorted(there | late):
            signs = (1,) if rank in late else (1, -1)
            for role, ahead in differences(count_calls(records, rank), usual):
                if ahead in [sign * ONE_CALL for sign in signs]:
                    yield rank, _say_at_point(role, usual[role], ahead, point)
                    break


def _agreed(records: Records, ranks: Sequence[int]) -> Tally:
    """Give the counts that all of these ranks share."""
    tallies = [count_calls(records, rank) for rank in ranks]
    return {
        role: count
        for role, count in tallies[0].items()
        if all(tally.get(role) == count for tally in tallies)
    }


def _compare_ways(
    positions: Positions, records: Records, end: End, candidates: Sequence[int]
) -> Iterator[tuple[int, str]]:
    """Compare with the others of a group that is part of the cycle: is one ahead and behind?

    Members that send each other messages are of several stages, each of which has a way of its own.
    """
    groups = {point.group.id: point.group for point in end.points if point.group is not None}
    for group in groups.values():
        members = set(group.members)
        if exchanges(records, members):
            continue
        fellows = [rank for rank in end.ranks if rank in members and rank not in candidates]
        tallies = [_count_all(records, rank) for rank in fellows]
        for rank in candidates:
            own = _count_all(records, rank) if rank in members else {}
            for fellow, tally in zip(fellows, tallies, strict=True):
                role = find_crossing(own, tally) if own.keys() == tally.keys() else None
                if role is not None:
                    yield rank, _say_crossing(role, own[role] - tally[role], fellow)
                    break


def find_crossing(own: Tally, other: Tally) -> Role | None:
    """Find the one count that differs by one, the other way than all which differ."""
    ahead = [(role, by) for role, by in differences(own, other) if by > 0]
    behind = [(role, by) for role, by in differences(own, other) if by < 0]
    if not ahead or not behind:
        return None
    single = [side[0] for side in (behind, ahead) if len(side) == 1 and abs(side[0][1]) == ONE_CALL]
    return single[0][0] if single else None


def differences(own: Tally, other: Tally) -> Iterator[tuple[Role, int]]:
    """Give the counts that both have and that differ, and by how much."""
    for role, count in own.items():
        if role in other and count != other[role]:
            yield role, count - other[role]


def exchanges(records: Records, members: Collection[int]) -> bool:
    """Tell whether some of these ranks send each other messages, as stages of a pipeline do."""
    return any(row.peer in members for rank in members for row in records.transfers.get(rank, ()))


def count_calls(records: Records, rank: int) -> dict[Role, int]:
    """Count the calls of a rank in its groups of each role."""
    tally: dict[Role, int] = defaultdict(int)
    for log in records.logs_of(rank):
        tally[role_of(records.groups[log.group])] += log.called
    return dict(tally)


def _count_all(records: Records, rank: int) -> dict[Role, int]:
    """Count messages too, which only ranks of one stage have in common."""
    tally = count_calls(records, rank)
    rows = records.transfers.get(rank, ())
    if rows:
        tally["send", len(rows), ""] = sum(row.sends_begun for row in rows)
        tally["recv", len(rows), ""] = sum(row.receives_begun for row in rows)
    return tally


def role_of(group: Group) -> Role:
    """Give what groups of one kind have in common."""
    return name_kind(group), len(group.members), group.shape


def _say_at_point(role: Role, usual: int, ahead: int, point: WaitPoint) -> str:
    assert point.group is not None
    return (
        f"it has made {usual + ahead} calls in its {_say_groups(role)}, others at number "
        f"{point.number} of the group of {len(point.group.members)} ranks {usual}"
    )


def _say_crossing(role: Role, ahead: int, fellow: int) -> str:
    what = role[0] if role[0] in ("send", "recv") else f"call in its {_say_groups(role)}"
    more, fewer = ("more", "fewer") if ahead > 0 else ("fewer", "more")
    return f"it has made one {what} {more} than rank {fellow}, and {fewer} of the rest"


def _say_groups(role: Role) -> str:
    return f"groups of {role[1]} ranks"
