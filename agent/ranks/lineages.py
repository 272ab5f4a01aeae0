"""Decides which of the processes that carry a rank are the ranks. Pure: no /proc here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """A process with a rank in its environment or on a page of its own."""

    pid: int
    rank: int
    ancestors: tuple[int, ...]
    """Pids of its ancestors, nearest first, living or dead."""
    has_page: bool = False
    takes_part: bool = False
    """It is a member of a process group."""
    sets_rank: bool = False
    """It has set its rank itself: others of the family may have only inherited one."""
    starts_others: bool = False
    """It is a rank that started the other ranks of its node."""
    is_launcher: bool = False
    is_wrapper: bool = False
    is_python: bool = False
    start_time: int = 0


def choose_ranks(claimants: Iterable[Claimant]) -> set[int]:
    """Return the pids that are ranks: those with a page, else the one that takes part in
    collectives, else the topmost process with that rank.

    Child processes of a rank (DataLoader workers, compile helpers, trackers) inherit its
    environment. They are not ranks. Launchers and shells around the program are not ranks either.
    """
    known = {claimant.pid: claimant for claimant in claimants}
    families: dict[int, list[Claimant]] = defaultdict(list)
    for claimant in known.values():
        families[_head_of(claimant, known)].append(claimant)
    launchers = _find_launchers(known)
    chosen: set[int] = set()
    for family in families.values():
        chosen |= _choose_in_family(family, known, launchers)
    return chosen


def _head_of(claimant: Claimant, known: dict[int, Claimant]) -> int:
    """Return the pid of the topmost ancestor with the same rank. It identifies the family."""
    head = claimant.pid
    for pid in claimant.ancestors:
        if pid in known and known[pid].rank == claimant.rank:
            head = pid
    return head


def _find_launchers(known: dict[int, Claimant]) -> set[int]:
    """Return the pids of launchers: known by name, or without a page and above other ranks."""
    launchers = {claimant.pid for claimant in known.values() if claimant.is_launcher}
    for claimant in known.values():
        for pid in claimant.ancestors:
            above = known.get(pid)
            is_rank = above is None or above.has_page or above.starts_others
            if above is not None and not is_rank and above.rank != claimant.rank:
                launchers.add(pid)
    return launchers


def _choose_in_family(
    family: list[Claimant], known: dict[int, Claimant], launchers: set[int]
) -> set[int]:
    paged = [claimant for claimant in family if claimant.has_page]
    if paged:
        return {claimant.pid for claimant in _topmost(paged, paged)}
    members = [claimant for claimant in family if claimant.takes_part]
    if len(topmost := _topmost(members, members)) == 1:
        # Several would share a rank that they inherited: their own ranks are not known.
        return {topmost[0].pid}
    programs = [
        claimant
        for claimant in family
        if claimant.pid not in launchers
        and not claimant.is_wrapper
        and not _belongs_to_paged(claimant, known)
    ]
    topmost = _topmost(programs, programs)
    if len(topmost) > 1:
        # `python train.py | tee log` under one shell: only the program is a rank. mp.spawn: the
        # workers set their ranks, and the resource tracker, which is older, sets none.
        topmost.sort(
            key=lambda each: (not each.sets_rank, not each.is_python, each.start_time, each.pid)
        )
    return {claimant.pid for claimant in topmost[:1]}


def _topmost(candidates: list[Claimant], among: list[Claimant]) -> list[Claimant]:
    pids = {claimant.pid for claimant in among}
    return [each for each in candidates if not pids.intersection(each.ancestors)]


def _belongs_to_paged(claimant: Claimant, known: dict[int, Claimant]) -> bool:
    """Return whether a process with a page is an ancestor.

    Helpers of such a process may carry ranks of process groups of their own.
    """
    return any(pid in known and known[pid].has_page for pid in claimant.ancestors)
