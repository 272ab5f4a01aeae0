"""A request to one of several towers: the first one that accepts it.

One tower owns the jobs. The others are on standby and refuse every request at once. So a client
that knows all addresses needs no load balancer, and finds the owner with the next request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from watchtower.access.tower_address import TowerAddress, split_urls
from watchtower.access.tower_connection import (
    NoReplyError,
    RefusedError,
    ReplyLimits,
    TowerConnection,
    TowerError,
    UnreachableError,
)

STANDBY = "This tower is on standby"
"""Title of the problem with which a tower refuses what only the owner of the jobs may answer."""

FAILOVER_S = 2.0
"""Seconds that one of several towers has to connect and to answer. A tower that stands still costs
this long, once: the next request begins with the tower that answered."""


class TowerChoice:
    """Which of several addresses is tried first. The connections of one agent share it."""

    def __init__(self) -> None:
        self.place = 0
        self.listeners: list[Callable[[int], None]] = []
        """Called with the new place, in the thread whose request has moved it."""
        self._lock = threading.Lock()

    def move(self, place: int) -> None:
        """Try this address first from now on."""
        with self._lock:
            is_moved, self.place = place != self.place, place
        if is_moved:
            for listen in self.listeners:
                listen(place)


class Towers:
    """Keep-alive connections to the addresses of a tower. Only one thread at a time may use it."""

    def __init__(
        self,
        address: TowerAddress,
        limits: ReplyLimits,
        choice: TowerChoice | None = None,
        *,
        failover_s: float = FAILOVER_S,
    ) -> None:
        """`failover_s` replaces the limits of time if there are several addresses."""
        urls = split_urls(address.url)
        if len(urls) > 1:
            connect_s, reply_s = min(failover_s, limits.connect_s), min(failover_s, limits.reply_s)
            limits = replace(limits, connect_s=connect_s, reply_s=reply_s)
        self._urls = urls
        self._choice = choice or TowerChoice()
        self._connections = [TowerConnection(replace(address, url=url), limits) for url in urls]
        self._busy: TowerConnection | None = None

    def get(self, path: str) -> bytes:
        """Send a GET request and return the body of the reply. Raises TowerError."""
        return self.exchange("GET", path)

    def post(self, path: str, body: bytes) -> bytes:
        """Send JSON and return the body of the reply. Raises TowerError."""
        return self.exchange("POST", path, body)

    def exchange(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Send a request to each address in turn, until one accepts it. Return the reply's body.

        Raises TowerError: that of the only address, a refusal by the owner, or what all answered.
        """
        if len(self._connections) == 1:
            return self._connections[0].exchange(method, path, body)
        first, failures = self._choice.place, dict[int, TowerError]()
        for place in _in_turn(first, len(self._connections)):
            self._busy = self._connections[place]
            try:
                answer = self._busy.exchange(method, path, body)
            except TowerError as error:
                if not _may_be_elsewhere(error):
                    raise
                failures[place] = error
            else:
                self._choice.move(place)
                return answer
            finally:
                self._busy = None
        if self._choice.place == first:  # no other thread has found the owner
            standby = (place for place, error in failures.items() if is_standby(error))
            self._choice.move(next(standby, (first + 1) % len(self._connections)))
        raise self._failed(failures)

    def follow(self, place: int) -> None:
        """End a request to another address: a tower that stands still must not delay it.

        For another thread.
        """
        busy = self._busy
        if busy is not None and busy is not self._connections[place]:
            busy.abandon()

    def close(self) -> None:
        """Close the connections. The next call makes new ones."""
        for connection in self._connections:
            connection.close()

    def _failed(self, failures: dict[int, TowerError]) -> TowerError:
        reasons = (f"{self._urls[place]}: {error.reason}" for place, error in failures.items())
        errors = failures.values()
        kind = type(next(iter(errors)))
        same = all(type(error) is kind for error in errors)
        kinds = (UnreachableError, NoReplyError)
        failed = (kind if same and kind in kinds else TowerError)("; ".join(reasons))
        failed.retry_after_s = max(error.retry_after_s for error in errors)
        return failed


def is_standby(error: TowerError) -> bool:
    """Return whether a tower on standby has refused the request."""
    return isinstance(error, RefusedError) and error.title == STANDBY


def _may_be_elsewhere(error: TowerError) -> bool:
    """Return whether another tower may accept the request: the owner refuses it for all of them."""
    if is_standby(error) or not isinstance(error, RefusedError):
        return True
    is_answer = error.status < 500 and bool(error.title)  # such as 404 for an unknown job
    return not (is_answer or error.permanent or error.retry_after_s)


def _in_turn(first: int, number: int) -> list[int]:
    return [(first + each) % number for each in range(number)]
