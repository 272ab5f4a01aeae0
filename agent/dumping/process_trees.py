"""Which processes are descendants of a rank."""

from __future__ import annotations

from collections import defaultdict

from agent.procfs import Proc
from watchtower.wire.bounds import MAX_CHILDREN


def children_by_parent(proc: Proc) -> dict[int, list[int]]:
    """Return the child pids by parent pid. Reads every process, so it runs only for a dump."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid in sorted(proc.pids()):
        if stat := proc.stat(pid):
            children[stat.ppid].append(pid)
    return children


def descendants(pid: int, children: dict[int, list[int]], *, without: set[int]) -> list[int]:
    """Return all descendants, nearest first, without other ranks and their descendants."""
    found: list[int] = []
    level = [pid]
    while level and len(found) <= MAX_CHILDREN:
        level = [child for parent in level for child in children.get(parent, ())]
        level = [child for child in level if child not in without]
        found.extend(level)
    return found
