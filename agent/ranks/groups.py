"""Numbers the processes that work together and have no ranks: actors, workers of a server. Pure.

Their number is their rank for the tower. A process keeps it, so that one that ends or joins changes
no other. A process that takes the place of an ended one gets the lowest number that is free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

LEAST_MEMBERS = 2
"""A process alone waits for no other, so it is not watched."""

SETTLES_AFTER_S = 5.0
"""Seconds after the last process joined until a group is numbered. Its processes start within some
seconds, in any order, and may set a rank after that: then that rank counts.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One living process of a group."""

    pid: int
    group: Hashable
    order: tuple[int, ...]
    """Its place before its number is known: position, start time."""
    joined_at: float
    number: int | None = None
    """The number that it has."""
    has_rank: bool = False
    """It shows a rank of its own. Then its group is not numbered."""


def number_members(members: Iterable[Member], now: float) -> dict[int, int]:
    """Return the number of each process whose group can be numbered, by pid."""
    groups: dict[Hashable, list[Member]] = defaultdict(list)
    for member in members:
        groups[member.group].append(member)
    found: dict[int, int] = {}
    for group in groups.values():
        found |= _number(group, now)
    return found


def find_left_out(members: Iterable[Member]) -> set[int]:
    """Return the processes without a rank in groups in which others have one."""
    known = list(members)
    ranked = {member.group for member in known if member.has_rank}
    return {each.pid for each in known if each.group in ranked and not each.has_rank}


def settles_at(members: Iterable[Member]) -> float:
    """Return the time at which the last process without a number has its number; 0 if all have."""
    waiting = (member.joined_at for member in members if member.number is None)
    return max((at + SETTLES_AFTER_S for at in waiting), default=0.0)


def _number(group: list[Member], now: float) -> dict[int, int]:
    if any(member.has_rank for member in group):
        return {}
    known = {member.pid: member.number for member in group if member.number is not None}
    new = sorted((each for each in group if each.number is None), key=lambda each: each.order)
    is_settled = all(now - each.joined_at >= SETTLES_AFTER_S for each in new)
    if new and is_settled and len(group) >= LEAST_MEMBERS:
        taken = set(known.values())
        free = (number for number in range(len(group) + len(taken)) if number not in taken)
        known |= {member.pid: number for member, number in zip(new, free, strict=False)}
    return known
