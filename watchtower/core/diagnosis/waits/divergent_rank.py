"""Finds the one rank whose counts cross those of the others: it made a call in the wrong group.

Of two ranks of one program, the one that is ahead in the groups of one role is behind in those of
none. A rank that reduced over its tensor parallel group where the others use the data parallel one
is ahead in the first and behind in the second, of several others, and no two of these cross. Where
groups are taken in two orders many cross many.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from watchtower.core.diagnosis.waits.call_counts import (
    Role,
    Tally,
    count_calls,
    differences,
    exchanges,
    find_crossing,
    role_of,
)
from watchtower.core.diagnosis.waits.collective_logs import Group, Records
from watchtower.core.diagnosis.waits.graph import End
from watchtower.core.diagnosis.waits.wording import describe_group
from watchtower.core.phrases import join_words

LEAST_CROSSED = 2
"""Of two ranks that cross each other either may be the one."""

Crossing = tuple[int, int]
"""A rank that is ahead of another in some count and behind in another one, and that other."""


def find_crosser(records: Records, end: End, candidates: Sequence[int]) -> dict[int, str]:
    """Find the candidate without which no counts would cross, with a clause about it."""
    tallies = _take_tallies(records, end)
    crossings = _find_crossings(tallies, candidates)
    for rank in _covers(crossings, candidates):
        crossed = [other for one, other in crossings if one == rank]
        by_one = all(find_crossing(tallies[rank], tallies[other]) for other in crossed)
        if len(crossed) >= LEAST_CROSSED and by_one:
            return {rank: _say(records, tallies, rank, crossed)}
    return {}


def has_many_orders(records: Records, end: End, candidates: Sequence[int]) -> bool:
    """Tell whether no one rank explains the counts: at least two call their groups another way."""
    crossings = _find_crossings(_take_tallies(records, end), candidates)
    return bool(crossings) and not _covers(crossings, candidates)


def _take_tallies(records: Records, end: End) -> dict[int, Tally]:
    """Count the calls of all who are in the groups of a cycle; none where messages go in them.

    Stages of a pipeline have a way each.
    """
    groups = {point.group.id: point.group for point in end.points if point.group is not None}
    members = {rank for group in groups.values() for rank in group.members}
    if exchanges(records, members):
        return {}
    return {rank: count_calls(records, rank) for rank in sorted(members)}


def _find_crossings(tallies: dict[int, Tally], candidates: Collection[int]) -> tuple[Crossing, ...]:
    """Give every candidate with each rank that it crosses; two candidates twice."""
    return tuple(
        (one, other)
        for one in candidates
        for other, tally in tallies.items()
        if one in tallies and _do_cross(tallies[one], tally)
    )


def _do_cross(one: Tally, other: Tally) -> bool:
    if one.keys() != other.keys():
        return False
    ahead = [by > 0 for _, by in differences(one, other)]
    return any(ahead) and not all(ahead)


def _covers(crossings: Sequence[Crossing], candidates: Sequence[int]) -> list[int]:
    """Give the candidates that are part of every crossing; none without any."""
    if not crossings:
        return []
    return [rank for rank in candidates if all(rank in crossing for crossing in crossings)]


def _say(records: Records, tallies: dict[int, Tally], rank: int, crossed: Sequence[int]) -> str:
    """Say it beside the rank whose counts are nearest."""
    near = min(
        crossed,
        key=lambda other: (
            sum(abs(by) for _, by in differences(tallies[rank], tallies[other])),
            other,
        ),
    )
    more, fewer = (
        join_words(
            [
                _say_by(records, rank, role, abs(by), "more" if sign > 0 else "fewer")
                for role, by in differences(tallies[rank], tallies[near])
                if by * sign > 0
            ]
        )
        for sign in (1, -1)
    )
    return (
        f"it has made {more}, and {fewer}, than rank {near} in its own; no others differ both ways"
    )


def _say_by(records: Records, rank: int, role: Role, by: int, how: str) -> str:
    own = list(_groups_in(records, rank, role))
    where = describe_group(own[0]) if len(own) == 1 else f"its groups of {role[1]} ranks"
    return f"{by} {'call' if by == 1 else 'calls'} {how} in {where}"


def _groups_in(records: Records, rank: int, role: Role) -> Iterator[Group]:
    for log in records.logs_of(rank):
        if role_of(records.groups[log.group]) == role:
            yield records.groups[log.group]
