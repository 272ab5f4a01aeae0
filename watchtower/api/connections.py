"""Connections: how many there are, and a deadline for everything a client can leave undone.

uvicorn bounds what it buffers of a body and how long a connection idles between requests. This adds
the rest: connections that say nothing, heads without end, bodies that trickle, answers nobody
fetches.

Its protocol class is not documented: pyproject.toml allows the versions that are known to work.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 10.0
"""From the connection, or the first byte of a request, to the end of its headers."""

REQUEST_S = 60.0
"""From the headers to the last byte of the answer: the longest body may take half of it."""

LINGER_S = 2.0
"""A client whose body is not wanted gets this long to send it into the void: were the connection
closed at once, the kernel would reset it, and with that take away our answer."""

MAX_BARE_BYTES = 64 * 1024
"""Bytes without any body among them (headers, trailers, chunk sizes); agents send 300."""

MAX_CONNECTIONS = 40_000
"""Two for each of 16,384 nodes while they dump, and room for readers."""

RESERVED_DESCRIPTORS = 128
"""For the store, the listener, libraries: never spent on connections."""

LEAST_DESCRIPTORS = 512
"""Enough for 190 agents that each have two connections. With fewer, a tower would start, and refuse
agents later."""

ONE_ADDRESS = 0.5
"""One address may hold this share of all connections: a proxy, or agents side by side in tests."""


class ConnectionLimit:
    """Counts the connections of one server, by address."""

    def __init__(self, limit: int, on_refusal: Callable[[str], None]) -> None:
        self.limit = limit
        self._on_refusal = on_refusal
        self._count = 0
        self._by_address: Counter[str] = Counter()

    def enter(self, address: str) -> bool:
        """Count a connection; False when it is one too many."""
        most_of_one = self.limit * ONE_ADDRESS
        is_welcome = self._count < self.limit and self._by_address[address] < most_of_one
        if is_welcome:
            self._count += 1
            self._by_address[address] += 1
        else:
            self._on_refusal(address)
        return is_welcome

    def leave(self, address: str) -> None:
        """Take one out that was counted."""
        self._count -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]


def raise_descriptor_limit() -> int:
    """Return how many connections this process may have, once it may have as many as it can.

    Raises OSError when these are too few to watch a job.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + RESERVED_DESCRIPTORS
    allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < LEAST_DESCRIPTORS:
        raise OSError(
            f"this process may open {allowed} files, the tower needs at least {LEAST_DESCRIPTORS}: "
            "raise the hard limit with `ulimit -Hn 65536`, or with LimitNOFILE= in its systemd unit"
        )
    return min(MAX_CONNECTIONS, allowed - RESERVED_DESCRIPTORS)


class BoundedConnection(HttpToolsProtocol):
    """One connection. Made by the server; `limit` is set by `connection_class`."""

    limit: ConnectionLimit

    _due: float | None = None
    _timer: asyncio.TimerHandle | None = None
    _bare_bytes = 0
    _is_complete = True
    """Whether the last request was received to its end."""
    _address = ""
    """Empty unless the connection is counted."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)  # type: ignore[arg-type]
        address = self.client[0] if self.client else "local"
        if not self.limit.enter(address):
            self.transport.abort()
            return
        self._address = address
        self._expect_within(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
        if self._address:
            self.limit.leave(self._address)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came; give up when it is all heads and no body."""
        if self.transport.is_closing():
            return
        self._bare_bytes += len(data)
        super().data_received(data)
        if self._bare_bytes > MAX_BARE_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._is_complete = False
        self._expect_within(HEAD_S)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its body begins."""
        self._bare_bytes = 0
        self._expect_within(REQUEST_S)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of its body."""
        self._bare_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """It has been received."""
        self._is_complete = True
        self._bare_bytes = 0
        if self.cycle.response_complete:
            self._expect_within(HEAD_S)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """It has been answered."""
        has_more = bool(self.pipeline)
        super().on_response_complete()
        if has_more:
            self._expect_within(REQUEST_S)
        elif self._is_complete:
            self._due = None  # uvicorn ends connections that idle
        else:
            self._expect_within(LINGER_S)

    def _expect_within(self, seconds: float) -> None:
        """Set the deadline. The timer is moved only when it would come too late."""
        self._due = self.loop.time() + seconds
        if self._timer is None or self._timer.when() > self._due:
            self._start_timer(self._due)

    def _start_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._due is None:
            return
        if self._due > self.loop.time():
            self._start_timer(self._due)
        elif not self.transport.is_closing():
            self.transport.abort()


def connection_class(limit: ConnectionLimit) -> type[Any]:
    """Make the class of one server's connections."""
    return type("CountedConnection", (BoundedConnection,), {"limit": limit})
