"""The ranks that a dump is about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from watchtower_heartbeat.page import PageView

from agent.watching.ranks import WatchedRank


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A rank to dump."""

    rank: int
    pid: int
    start_time: int
    read_page: Callable[[], PageView | None]


def no_page() -> None:
    """Read the page of a rank that has none."""


def target_of(rank: WatchedRank) -> Target:
    """Return a watched rank as the target of a dump."""
    return Target(
        rank=rank.found.claim.rank,
        pid=rank.found.process.pid,
        start_time=rank.found.process.start_time,
        read_page=rank.heartbeat.view_now if rank.heartbeat is not None else no_page,
    )
