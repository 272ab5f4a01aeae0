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
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from watchtower.api.allowances import share_of
from watchtower.api.problems import describe_failure, problem
from watchtower.service.sharing import Quota

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

ANSWERS_S = 0.01
"""Seconds of direct answers in one turn of the loop. When every node reported at one moment, one
turn took a second: all other work of the tower has one step in a turn, and a dump needs a dozen."""

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

    def is_usual(self, scope: Scope) -> bool:
        """Return whether a request with these headers has all rights that it needs."""

    def rights(self) -> object:
        """Return a value that is another object once `is_usual` may return something else."""

    def hold(self, client: str, length: int) -> bool:
        """Return whether a body of this length may be collected, and count it as held."""

    def release(self, client: str, length: int) -> None:
        """Subtract a body that `hold` counted."""

    def answer(self, client: str, body: bytes) -> bytes | None:
        """Return the JSON of a reply with status 200, or None.

        An error becomes a reply with status 500: the application could process the request a second
        time.
        """


class KnownHead(NamedTuple):
    """The head of a request that a connection may answer directly, around the length of its body.

    Agents send the same head each time. Equal bytes need not be parsed and checked again.
    """

    before: bytes
    after: bytes
    scope: Scope
    rights: object
    """`DirectAnswers.rights` when its rights were checked."""

    def find_length(self, data: bytes) -> tuple[int, int] | None:
        """Return where the body begins, and its length; None if `data` begins differently."""
        if not data.startswith(self.before):
            return None
        begin = len(self.before)
        end = data.find(b"\r", begin, begin + MAX_LENGTH_DIGITS + 1)
        digits = data[begin:end] if end > 0 else b""
        if not digits.isdigit() or not data.startswith(self.after, end):
            return None
        return end + len(self.after), int(digits)


class AnswerTurns:
    """Spreads direct answers over the turns of the loop. Further requests wait in their order."""

    def __init__(self) -> None:
        self._turn = self._until = 0.0
        """The present turn, and when its answers should end."""
        self._waiting: deque[BoundedConnection] = deque()

    def may_answer(self, connection: BoundedConnection) -> bool:
        """Return whether a request may be answered now. If not, `go_on` is called in a later turn
        of the loop."""
        now, loop = time.monotonic(), connection.loop
        if (turn := loop.time()) != self._turn:  # the time of uvloop stands still during a turn
            self._turn, self._until = turn, now + ANSWERS_S
        if now < self._until and not self._waiting:
            return True
        if not self._waiting:
            loop.call_soon(self._go_on, loop)
        self._waiting.append(connection)
        return False

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """Answer those that have waited longest."""
        until = time.monotonic() + ANSWERS_S
        while self._waiting:
            self._waiting.popleft().go_on()
            if time.monotonic() >= until:
                break
        if self._waiting:
            loop.call_soon(self._go_on, loop)


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
    """One connection. The server creates it, and `connection_class` sets the first three."""

    limit: ConnectionLimit
    direct: DirectAnswers | None
    turns: AnswerTurns

    _due: float | None = None
    _timer: asyncio.TimerHandle | None = None
    _bare_bytes = 0
    _is_complete = True
    """Whether the last request was received completely."""
    _address = ""
    """Empty unless the connection is counted."""
    _first: bytes | None = None
    """The data with the head of the request that is being parsed, if the request began with it."""
    _known_head: KnownHead | None = None
    _collected: bytearray | None = None
    """A request that begins with the known head. It is not complete, or waits for its turn."""
    _missing = 0
    """Bytes that it lacks."""
    _has_turn = False
    """Whether it is the turn of a request that has waited."""
    _held = 0
    """Bytes of its body, which are counted as held."""

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
        self._collected = None
        self._release_body()
        if self._address:
            self.limit.leave(self._address)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Answer usual requests. Parse all other data."""
        if self._collected is not None:
            self._collected += data
            if self._missing <= 0:  # it waits for its turn: its client need not send more
                self.flow.pause_reading()
                return
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = self._take_collected()
        self._handle(data)

    def go_on(self) -> None:
        """Answer a request that has waited for its turn."""
        if self._collected is not None and self._missing <= 0:
            self._has_turn = True
            self._handle(self._take_collected())
            self._has_turn = False

    def _take_collected(self) -> bytes:
        data, self._collected = bytes(self._collected or b""), None
        self._release_body()
        self.flow.resume_reading()
        return data

    def _handle(self, data: bytes) -> None:
        while data and not self.transport.is_closing():
            rest = self._answer_directly(data)
            if rest is None:
                self._parse(data)
                return
            data = rest

    def _parse(self, data: bytes) -> None:
        """Pass data to the application. Close the connection after too many bytes that are not
        body."""
        self._bare_bytes += len(data)
        self._first = data if self._is_complete else None
        super().data_received(data)
        self._first = None
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
        if self._first is not None:
            self._note_head(self._first)
            self._first = None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Reset the count of bytes that are not body."""
        self._bare_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that the request was received completely."""
        self._is_complete = True
        self._bare_bytes = 0
        if self.cycle.response_complete:
            self._expect_within(HEAD_S)
        super().on_message_complete()

    def _note_head(self, data: bytes) -> None:
        """Remember the head of a request if later ones with it may be answered directly."""
        if self.direct is None or self.url != self.direct.path or not self._address:
            return
        names = [name for name, _ in self.headers]
        is_usual = (
            self.parser.get_method() == b"POST"
            and self.parser.get_http_version() == "1.1"
            and self.parser.should_keep_alive()
            and not self.parser.should_upgrade()
            and not self.expect_100_continue
            and names.count(b"content-length") == 1
            and _UNUSUAL.isdisjoint(names)
        )
        parts = _split_head(data) if is_usual else None
        if parts is not None:
            scope: Scope = {**self.scope, "method": "POST", "path": self.direct.path.decode()}
            self._known_head = KnownHead(*parts, scope, None)

    def _answer_directly(self, data: bytes) -> bytes | None:
        """Answer a request at the begin of `data`, or collect it. Return the data that follows.

        None if the application must handle all this data.
        """
        known = self._known_head
        if known is None or not self._may_answer():
            return None
        found = known.find_length(data)
        if found is None or found[1] <= 0 or not self._has_rights(known):
            return None
        begin, end = found[0], sum(found)
        if len(data) < end:
            return b"" if self._collect(data, found[1], end, DIRECT_BODY_S) else None
        if not self._has_turn and not self.turns.may_answer(self):
            return b"" if self._collect(data, found[1], end, REQUEST_S) else None
        self._has_turn = False
        if not self._write_answer(data[begin:end]):
            return None
        return data[end:]

    def _may_answer(self) -> bool:
        """Return whether the parser is between two requests, and the client reads the replies."""
        is_idle = self._is_complete and (self.cycle is None or self.cycle.response_complete)
        return is_idle and not self.flow.write_paused

    def _has_rights(self, known: KnownHead) -> bool:
        assert self.direct is not None
        rights = self.direct.rights()
        if known.rights is rights:
            return True
        is_usual = self.direct.is_usual(known.scope)
        self._known_head = known._replace(rights=rights) if is_usual else None
        return is_usual

    def _collect(self, data: bytes, length: int, end: int, wait_s: float) -> bool:
        """Keep a request until it is complete and has its turn. Return False without room for it.

        The application handles it if that takes longer than `wait_s` seconds.
        """
        assert self.direct is not None
        if not self.direct.hold(self._address, length):
            return False
        self._collected, self._missing, self._held = bytearray(data), end - len(data), length
        self._unset_keepalive_if_required()
        self._expect_within(wait_s)
        return True

    def _write_answer(self, body: bytes) -> bool:
        """Answer a request. Return False if the application must answer it."""
        assert self.direct is not None
        status, kind = b"200 OK", b"application/json"
        try:
            reply = self.direct.answer(self._address, body)
        except Exception as error:
            log.exception("a request to %s failed", self.direct.path.decode())
            response = problem(500, describe_failure(error))
            status, kind = b"500 Internal Server Error", b"application/problem+json"
            reply = bytes(response.body)
        if reply is None:
            return False
        head = [b"HTTP/1.1 ", status, b"\r\n"]
        for name, value in self.server_state.default_headers:
            head += (name, b": ", value, b"\r\n")
        # One write: each one is a call of the kernel, which costs as much as decoding a report.
        self.transport.write(b"".join(head) + _DIRECT_HEAD % (kind, len(reply)) + reply)
        self.server_state.total_requests += 1
        # Not a timer of uvicorn, which makes and cancels one for each request.
        self._unset_keepalive_if_required()
        self._expect_within(self.timeout_keep_alive)
        return True

    def _release_body(self) -> None:
        if self._held and self.direct is not None:
            self.direct.release(self._address, self._held)
        self._held = 0

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
        elif self._collected is not None:
            self._parse(self._take_collected())
        elif not self.transport.is_closing():
            self.transport.abort()


_UNUSUAL = {b"content-encoding", b"transfer-encoding"}
_DIRECT_HEAD = b"content-type: %s\r\nx-content-type-options: nosniff\r\ncontent-length: %d\r\n\r\n"


def _split_head(data: bytes) -> tuple[bytes, bytes] | None:
    """Return the head at the begin of `data` around its Content-Length; None if it is not plain."""
    head, end, _ = data.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n") if end and head.count(b"\n") == head.count(b"\r\n") else ():
        name, colon, value = line.partition(b": ")
        if name.lower() == b"content-length" and value.isdigit():
            before, _, after = (head + end).partition(line)
            return before + name + colon, after
    return None


def connection_class(limit: ConnectionLimit, direct: DirectAnswers | None = None) -> type[Any]:
    """Return the connection class of one server."""
    own = {"limit": limit, "direct": direct, "turns": AnswerTurns()}
    return type("CountedConnection", (BoundedConnection,), own)
