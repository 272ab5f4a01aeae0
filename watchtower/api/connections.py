"""Limits of connections: their number, and a deadline for every step of a request.

uvicorn limits its buffer of a body and the idle time between requests. This module adds limits for:

* connections that send nothing
* headers that do not end
* bodies that arrive slowly
* replies that the client does not read

Reports of agents are answered here, without a task and without ASGI messages: see `DirectAnswers`.

uvicorn's protocol class is not documented. pyproject.toml allows only versions that are known to
work.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Callable
from typing import Any, Protocol

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from watchtower.api.client_addresses import share_of
from watchtower.api.problems import describe_failure, problem
from watchtower.core.fleet.quotas import Quota

log = logging.getLogger("watchtower.api")

HEAD_S = 10.0
"""Seconds from the connection, or from the first byte of a request, to the end of its headers."""

REQUEST_S = 60.0
"""Seconds from the headers to the last byte of the reply. The body may take half of it."""

LINGER_S = 2.0
"""Seconds that a client has to finish a body after an early reply. If the connection were closed at
once, the kernel would reset it and the client could lose the reply."""

DIRECT_BODY_S = 1.0
"""Seconds for the body of a request that may be answered directly. The application waits longer for
a body, and explains why a slow one is refused."""

MAX_BARE_BYTES = 64 * 1024
"""Bytes in a row that are not part of a body: headers, trailers, chunk sizes. Agents send 300."""

MAX_CONNECTIONS = 40_000
"""Two for each of 16,384 nodes while they dump, and more for readers."""

RESERVED_DESCRIPTORS = 128
"""File descriptors for the store, the listener and libraries. Connections never use them."""

LEAST_DESCRIPTORS = 512
"""File descriptors that a tower needs to start: enough for 190 agents with two connections each.
With fewer, the tower would start and refuse agents later."""


MAX_LENGTH_DIGITS = 18
"""Digits of Content-Length. More digits are not a valid length, and int() of thousands of digits is
slow."""


class DirectAnswers(Protocol):
    """Answers usual requests of one kind as soon as they are complete.

    The application answers all others of this kind, and all for which `answer` returns None. So
    only the application refuses a request, and explains why.
    """

    path: bytes
    """The requests are POST with this path."""

    def begin(self, scope: Scope, client: str, length: int) -> bool:
        """Return whether a body of this length may be collected, and count it as held.

        False if the request needs a check that only the application makes, such as that of its
        rights: nothing of a sender without a token may be held.
        """

    def answer(self, scope: Scope, body: bytes) -> bytes | None:
        """Return the JSON of a reply with status 200, or None.

        Only for a request for which `begin` returned True. An error becomes a reply with status
        500: the application could process the request a second time.
        """

    def end(self, client: str, length: int) -> None:
        """Subtract a body for which `begin` returned True."""


class ConnectionLimit:
    """Counts the connections of one server. Addresses share the limit: one address has at most
    half of all connections, because a proxy or a test has many on one address."""

    def __init__(self, limit: int, on_refusal: Callable[[str], None]) -> None:
        self.limit = limit
        self._on_refusal = on_refusal
        self._open = Quota()

    def enter(self, address: str) -> bool:
        """Count a connection. Return False if an address has more than its share."""
        is_allowed = self._open.has_room(address, self.limit)
        if is_allowed:
            self._open.add(address, 1)
        else:
            self._on_refusal(address)
        return is_allowed

    def leave(self, address: str) -> None:
        """Subtract a connection that was counted."""
        self._open.add(address, -1)


def raise_descriptor_limit() -> int:
    """Raise the limit of file descriptors and return the number of connections that it allows.

    Raises OSError if the hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + RESERVED_DESCRIPTORS
    allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < LEAST_DESCRIPTORS:
        raise OSError(
            f"this process may open {allowed} files, but a tower needs at least "
            f"{LEAST_DESCRIPTORS}: raise the hard limit with `ulimit -Hn 65536`, or with "
            "LimitNOFILE= in the systemd unit"
        )
    return min(MAX_CONNECTIONS, allowed - RESERVED_DESCRIPTORS)


class BoundedConnection(HttpToolsProtocol):
    """One connection. The server creates it, and `connection_class` sets `limit` and `direct`."""

    limit: ConnectionLimit
    direct: DirectAnswers | None

    _due: float | None = None
    _timer: asyncio.TimerHandle | None = None
    _bare_bytes = 0
    _is_complete = True
    """Whether the last request was received completely."""
    _address = ""
    """Empty unless the connection is counted."""
    _direct_length = 0
    """Length of the body of a request that may be answered directly; 0 for all others."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Take the arguments of uvicorn."""
        super().__init__(*arguments, **named)
        self._direct_scope: Scope = {}
        self._direct_body = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection and start the deadline of its first request."""
        super().connection_made(transport)  # type: ignore[arg-type]
        address = share_of(self.client[0]) if self.client else "local"
        if not self.limit.enter(address):
            self.transport.abort()
            return
        self._address = address
        self._expect_within(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer and subtract the connection."""
        self._due = None
        if self._timer is not None:
            self._timer.cancel()
        self._end_direct()
        if self._address:
            self.limit.leave(self._address)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse data. Close the connection after too many bytes that are not body."""
        if self.transport.is_closing():
            return
        self._bare_bytes += len(data)
        super().data_received(data)
        if self._bare_bytes > MAX_BARE_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        """Start the deadline of the headers."""
        self._is_complete = False
        self._expect_within(HEAD_S)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Start the deadline of body and reply."""
        self._bare_bytes = 0
        self._expect_within(REQUEST_S)
        if not self._begin_direct():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Reset the count of bytes that are not body."""
        self._bare_bytes = 0
        if self._direct_length:
            self._direct_body += body
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that the request was received completely."""
        self._is_complete = True
        self._bare_bytes = 0
        if self._direct_length and self._answer_directly():
            return
        if self.cycle.response_complete:
            self._expect_within(HEAD_S)
        super().on_message_complete()

    def _begin_direct(self) -> bool:
        """Return whether the request is of the usual form that may be answered directly."""
        if self.direct is None or self.url != self.direct.path or not self._address:
            return False
        is_usual = (
            self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and self.parser.should_keep_alive()
            and not self.parser.should_upgrade()
            and not self.expect_100_continue
            and (self.cycle is None or self.cycle.response_complete)
            and not self.flow.write_paused
        )
        headers = dict(self.headers)
        digits = headers.get(b"content-length", b"")
        is_plain = digits.isdigit() and len(digits) <= MAX_LENGTH_DIGITS
        if not is_usual or not is_plain or b"content-encoding" in headers:
            return False
        length = int(digits)
        scope: Scope = {**self.scope, "method": "POST", "path": self.direct.path.decode()}
        if length <= 0 or not self.direct.begin(scope, self._address, length):
            return False
        self._direct_length, self._direct_scope = length, scope
        self._expect_within(DIRECT_BODY_S)
        return True

    def _answer_directly(self) -> bool:
        """Answer the request. Return False if the application must answer it, and pass it on."""
        assert self.direct is not None
        status, kind = b"200 OK", b"application/json"
        try:
            reply = self.direct.answer(self._direct_scope, bytes(self._direct_body))
        except Exception as error:
            log.exception("a request to %s failed", self.direct.path.decode())
            response = problem(500, describe_failure(error))
            status, kind = b"500 Internal Server Error", b"application/problem+json"
            reply = bytes(response.body)
        if reply is None:
            self._pass_on()
            return False
        self._end_direct()
        head = [b"HTTP/1.1 ", status, b"\r\n"]
        for name, value in self.server_state.default_headers:
            head += (name, b": ", value, b"\r\n")
        # One write: each one is a call of the kernel, which costs as much as decoding a report.
        self.transport.write(b"".join(head) + _DIRECT_HEAD % (kind, len(reply)) + reply)
        self.server_state.total_requests += 1
        # Not a timer of uvicorn, which makes and cancels one for each request.
        self._expect_within(self.timeout_keep_alive)
        return True

    def _pass_on(self) -> None:
        """Let the application answer the request, also if its body is not complete."""
        body = bytes(self._direct_body)
        self._end_direct()
        super().on_headers_complete()
        if body:
            super().on_body(body)

    def _end_direct(self) -> None:
        if self._direct_length and self.direct is not None:
            self.direct.end(self._address, self._direct_length)
        self._direct_length, self._direct_scope, self._direct_body = 0, {}, bytearray()

    def on_response_complete(self) -> None:
        """Set the next deadline after a reply."""
        has_more = bool(self.pipeline)
        super().on_response_complete()
        if has_more:
            self._expect_within(REQUEST_S)
        elif self._is_complete:
            self._due = None  # uvicorn closes idle connections
        else:
            self._expect_within(LINGER_S)

    def _expect_within(self, seconds: float) -> None:
        """Set the deadline. Restart the timer only if it would expire too late."""
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
        elif self._direct_length:
            self._expect_within(REQUEST_S)
            self._pass_on()
        elif not self.transport.is_closing():
            self.transport.abort()


_DIRECT_HEAD = b"content-type: %s\r\nx-content-type-options: nosniff\r\ncontent-length: %d\r\n\r\n"


def connection_class(limit: ConnectionLimit, direct: DirectAnswers | None = None) -> type[Any]:
    """Return the connection class of one server."""
    return type("CountedConnection", (BoundedConnection,), {"limit": limit, "direct": direct})
