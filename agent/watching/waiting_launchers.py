"""The launchers of a node that wait before there are ranks, and those that have ended so.

A launcher that ends without ranks leaves a job of which nothing is known: its output is not read.
If a process of another job has the port at which its launchers were to meet, that is the reason.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from agent.collectors.listeners import Ended
from agent.netlink import read_interfaces
from agent.procfs import Proc
from agent.ranks.launchers import is_loopback
from watchtower.wire.observations import Observation
from watchtower.wire.report import MAX_WAITING, Ending, EndingKind, WaitingLauncher
from watchtower.wire.sockets import split_port

KEPT_S = 60.0
"""Seconds for which a launcher that has ended is reported."""

PORT_IN_USE = "port_in_use"

Key = tuple[int, int]
"""Pid and start time of a process."""


class WaitingLaunchers:
    """The launchers of the last reports."""

    def __init__(self, proc: Proc, find_waiting: Callable[[], Iterable[WaitingLauncher]]) -> None:
        self._proc, self._find_waiting = proc, find_waiting
        self._waiting: dict[Key, WaitingLauncher] = {}
        self._ended: dict[Key, tuple[WaitingLauncher, float]] = {}

    def update(self, now: float) -> None:
        """Find the launchers that wait now, and those that waited before and have ended."""
        found = islice(self._find_waiting(), MAX_WAITING)
        waiting = {(each.pid, each.start_time): each for each in found}
        for key in self._waiting.keys() - waiting.keys():
            stat = self._proc.stat(key[0])
            has_ended = stat is None or stat.start_time != key[1] or stat.state == "Z"
            if has_ended and len(self._ended) < MAX_WAITING:
                self._ended[key] = self._waiting[key], now
        self._ended = {k: each for k, each in self._ended.items() if now - each[1] <= KEPT_S}
        self._waiting = waiting

    def ends(self, now: float) -> Iterator[Ended]:
        """Yield the launchers that have ended on the node at which all of them were to meet."""
        for (pid, start_time), (each, ended_at) in self._ended.items():
            if _is_here(split_port(each.endpoint)[0]):
                yield Ended(
                    pid=pid,
                    start_time=start_time,
                    job=each.job,
                    ending=Ending(kind=EndingKind.UNKNOWN, age_s=now - ended_at),
                    rendezvous=each.endpoint,
                    serves=True,
                    network="",
                    is_launcher=True,
                )

    def report(
        self, observations: Sequence[Observation], now: float
    ) -> tuple[WaitingLauncher, ...]:
        """Return those that wait, and those that have ended for a reason that is known."""
        reasons = {each.pid: each.text for each in observations if each.name == PORT_IN_USE}
        ended = [
            replace(each, waits_s=each.waits_s + now - at, ended=reasons[pid])
            for (pid, _), (each, at) in self._ended.items()
            if pid in reasons
        ]
        return (*self._waiting.values(), *ended)[:MAX_WAITING]


def _is_here(host: str) -> bool:
    """Return whether an address or a name is of this node."""
    name = os.uname().nodename
    if not host or is_loopback(host) or host in (name, name.partition(".")[0]):
        return bool(host)
    with contextlib.suppress(OSError):
        return host in read_interfaces()
    return False
