"""The ranks of all nodes that are not watched, for the API, commands, pages and metrics."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from watchtower.jobs.agents import UnwatchedRanks
from watchtower.service.sharing import by_turns
from watchtower.tower.tower import Tower
from watchtower.wire.drills import is_drill
from watchtower.wire.report import OTHER_REASONS

MAX_SHOWN = 100
"""Entries in one answer. Owners take turns. The others are counted."""

MAX_REASONS = 16
"""Reasons that the metric has as labels. Agents of later releases may report new ones."""

_REASON = re.compile(r"[a-z_]{1,32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnwatchedView:
    """Processes of one node, one job and one reason that are not watched."""

    node: str
    job: str
    """Empty if it is not known."""
    owner: str
    reason: str
    """A word such as "second_claim" or "over_limit"."""
    count: int
    """Number of processes."""
    pids: list[int]
    """At most eight of them."""
    text: str
    """What is not watched, why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnwatchedList:
    """Processes that agents recognize as ranks and that are not watched."""

    items: list[UnwatchedView]
    rank_count: int
    """Number of these processes, also of those that `items` leaves out."""


ALL_WATCHED = UnwatchedList(items=[], rank_count=0)


def list_unwatched(tower: Tower, job: str | None = None, *, drills: bool = False) -> UnwatchedList:
    """Return what is not watched: of one job, or of all."""
    found = [
        UnwatchedView(
            node=node,
            job=each.job,
            owner=each.owner,
            reason=each.reason,
            count=each.count,
            pids=list(each.pids),
            text=each.text,
        )
        for node, each in _find(tower)
        if each.job == job or (job is None and (drills or not is_drill(each.job)))
    ]
    found.sort(key=lambda each: (-each.count, each.node, each.job, each.reason))
    items = list(by_turns((each.owner, each) for each in found))[:MAX_SHOWN]
    return UnwatchedList(items=items, rank_count=sum(each.count for each in found))


def count_unwatched(tower: Tower) -> dict[str, int]:
    """Return the number of ranks that are not watched, by reason. Drills do not count."""
    counts = Counter[str]()
    for _, each in _find(tower):
        if not is_drill(each.job):
            known = _REASON.fullmatch(each.reason) is not None
            counts[each.reason if known else OTHER_REASONS] += each.count
    most = dict(counts.most_common(MAX_REASONS))
    rest = counts.total() - sum(most.values())
    return {**most, OTHER_REASONS: most.get(OTHER_REASONS, 0) + rest} if rest else most


def _find(tower: Tower) -> Iterator[tuple[str, UnwatchedRanks]]:
    """Yield the node and the entry of all agents that report."""
    now = tower.clock.now()
    for name, node in tower.fleet.nodes.items():
        if node.unwatched and not tower.detector.is_silent(node.reporter, now):
            for each in node.unwatched:
                yield name, each
