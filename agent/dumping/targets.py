"""The ranks that a dump is about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from watchtower_heartbeat.page import PageView


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A rank to dump."""

    rank: int
    pid: int
    start_time: int
    read_page: Callable[[], PageView | None]
