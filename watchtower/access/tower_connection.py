"""HTTP to the tower, for agent, commands and drills: one persistent connection with limits.

Redirects and proxies are not used, so that a token is sent only to the configured tower.

The limits of time and size are for a whole reply. http.client starts a new timeout for every piece:
a server that sends one byte a second could block the reading thread for hours. It also reads
headers of megabytes, and any number of "100 Continue".
"""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import socket
import ssl
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from watchtower.access.tls import TlsError, explain, trust
from watchtower.access.tokens import FILE_VARIABLE, VARIABLE, TokenError
from watchtower.access.tower_address import TowerAddress
from watchtower.writing.printable import printable

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_HEAD_BYTES = 32 * 1024
"""Bytes of status line and headers. A tower sends 200 bytes, and proxies add a few hundred. The
limit is less than the longest line that http.client reads, so that the error is always the same."""

FRAMES = 8
"""A chunked body may need this many times its own size on the connection."""


class ReplyTooLongError(http.client.HTTPException):
    """A reply is longer than the client accepts."""


def bounded_reply(deadline_s: float, max_bytes: int) -> type[http.client.HTTPResponse]:
    """Return a `response_class` for connections, whose replies have limits.

    Raises TimeoutError if status, headers and body need more than `deadline_s` seconds together,
    and ReplyTooLongError if the headers or the chunk framing are far longer than necessary. The
    caller reads at most `max_bytes` + 1 bytes of the body.
    """

    class BoundedReply(http.client.HTTPResponse):
        def __init__(
            self,
            sock: socket.socket,
            debuglevel: int = 0,
            method: str | None = None,
            url: str | None = None,
        ) -> None:
            super().__init__(sock, debuglevel, method, url)
            self.fp.close()
            self._reader = _BoundedReader(sock, time.monotonic() + deadline_s, MAX_HEAD_BYTES)
            self.fp = io.BufferedReader(self._reader)

        def begin(self) -> None:
            super().begin()
            self._reader.allow(max_bytes * FRAMES)

    return BoundedReply


def read_body(response: http.client.HTTPResponse, max_bytes: int) -> bytes:
    """Return the whole body. Raises ReplyTooLongError, and IncompleteRead if the end is missing.

    http.client itself does not raise IncompleteRead if a number of bytes is requested.
    """
    body = response.read(max_bytes + 1)
    if len(body) > max_bytes:
        raise ReplyTooLongError(f"the reply is longer than {max_bytes} bytes")
    if response.length:
        raise http.client.IncompleteRead(body, response.length)
    return body


class _BoundedReader(io.RawIOBase):
    """Reads a socket up to a time on the monotonic clock and up to a number of bytes."""

    def __init__(self, sock: socket.socket, until: float, most: int) -> None:
        self._sock, self._until, self._left = sock, until, most
        # makefile() keeps the socket open for this reader when the connection closes it.
        self._raw = sock.makefile("rb", buffering=0)

    def allow(self, count: int) -> None:
        """Allow `count` more bytes."""
        self._left += count

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the reply took too long")
        if self._left <= 0:
            raise ReplyTooLongError("the headers or the chunk framing of the reply are too long")
        before = self._sock.gettimeout()
        self._sock.settimeout(left_s if before is None else min(left_s, before))
        try:
            count = self._raw.readinto(buffer)
        finally:
            self._sock.settimeout(before)
        self._left -= count or 0
        return count

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


NEVER = (400, 413, 422)
"""Statuses of a permanent refusal, if the reply is problem+json: a retry of the same message cannot
succeed. Any other failure may be temporary, such as a 404 of another server or a wrong token."""

_CLOSED_WHILE_IDLE = (
    http.client.RemoteDisconnected,
    BrokenPipeError,
    ConnectionResetError,
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
)
"""Errors of an idle connection on its next use, in HTTP and in TLS, if the other end has closed
it."""

NO_SUCH_ADDRESS = "Unknown address"
"""Title of the problem with which a tower answers a request for a path that it does not have."""

MAX_RETRY_AFTER_S = 60.0
"""A reply cannot make its client wait longer than this."""

MAX_DETAIL = 1000
"""Characters of the tower's explanation that are logged or printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyLimits:
    """Limits of time and size for one request and its reply."""

    connect_s: float
    """Seconds to connect, to send a request, and between two pieces of a reply."""
    reply_s: float
    """Seconds for the whole reply."""
    max_bytes: int
    """Bytes of a reply's body."""


class TowerError(Exception):
    """The tower is not reachable or refused the request. `reason` is a phrase for a log line."""

    permanent = False
    """Whether a retry of the same message cannot succeed."""
    retry_after_s = 0.0
    """Seconds after which the tower asks to retry; 0 if it does not say."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class UnreachableError(TowerError):
    """The connection failed: no server listens at the address, or the host is not reachable."""


class NoReplyError(TowerError):
    """The connection was made, but no complete reply arrived in time."""


class RefusedError(TowerError):
    """The tower answered with an error status."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        permanent: bool,
        title: str = "",
        retry_after_s: float = 0.0,
    ) -> None:
        """`detail` and `title` are those of the tower's reply; empty without them."""
        more = ""
        if 300 <= status < 400:
            more = "(a redirect: use the address that it leads to)"
        elif status == HTTPStatus.UNAUTHORIZED:
            more = f"(set --token-file, {FILE_VARIABLE} or {VARIABLE})"
        super().__init__(" ".join(part for part in (f"HTTP {status}", detail, more) if part))
        self.status, self.detail, self.permanent = status, detail, permanent
        self.title, self.retry_after_s = title, retry_after_s


class _OnePiece(http.client.HTTPConnection):
    """Sends the head and the body of a request together.

    http.client sends them one after the other. Two packets cost both ends twice the work.
    """

    _pieces: list[Any] | None = None

    def request(self, *arguments: Any, **named: Any) -> None:
        """Send a request."""
        pieces: list[Any] = []
        self._pieces = pieces
        try:
            super().request(*arguments, **named)
        finally:
            self._pieces = None
        self.send(b"".join(pieces))

    def send(self, data: Any) -> None:
        """Send bytes, or keep them until the request is complete."""
        if self._pieces is not None:
            self._pieces.append(data)
        else:
            super().send(data)


class _OnePieceTls(_OnePiece, http.client.HTTPSConnection):
    """The same over TLS."""


class TowerConnection:
    """One keep-alive connection. Only one thread at a time may use it."""

    def __init__(self, address: TowerAddress, limits: ReplyLimits) -> None:
        parts = urlsplit(address.url)
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._prefix = parts.path.rstrip("/")
        self._token = address.token
        self._shown: dict[str, str] = {}
        self._ca_file = address.ca_file
        self._limits = limits
        self._connection: http.client.HTTPConnection | None = None
        self._is_abandoned = False

    def get(self, path: str) -> bytes:
        """Send a GET request and return the body of the reply. Raises TowerError."""
        return self.exchange("GET", path)

    def post(self, path: str, body: bytes) -> bytes:
        """Send JSON and return the body of the reply. Raises TowerError."""
        return self.exchange("POST", path, body)

    def exchange(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Send a request, whose body is JSON if there is one, and return the body of the reply.

        Raises TowerError.
        """
        self._is_abandoned = False
        try:
            return self._exchange_or_renew_token(method, path, body)
        except TowerError:
            raise
        except Exception as error:
            # For example a UnicodeError from a host name with an empty label. The tower has not
            # refused this message in any of these cases.
            self.close()
            kind = NoReplyError if isinstance(error, TimeoutError) else TowerError
            raise kind(self._explain(error)) from error

    def close(self) -> None:
        """Close the connection. The next call makes a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def abandon(self) -> None:
        """Make a running request fail at once. For another thread."""
        self._is_abandoned, connection = True, self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):  # not the method of TLS, which waits for the peer
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

    def __del__(self) -> None:
        """Close the connection: commands do not call `close`."""
        if getattr(self, "_connection", None) is not None:
            self.close()

    def _exchange_or_renew_token(self, method: str, path: str, body: bytes | None) -> bytes:
        try:
            return self._exchange_or_reconnect(method, path, body)
        except RefusedError as error:
            if error.status != HTTPStatus.UNAUTHORIZED or not self._has_new_token():
                raise
        return self._exchange_or_reconnect(method, path, body)

    def _has_new_token(self) -> bool:
        """Return whether the token's file contains another token than the refused one."""
        try:
            return self._token.renew(self._shown)
        except TokenError as error:
            raise TowerError(str(error)) from None

    def _exchange_or_reconnect(self, method: str, path: str, body: bytes | None) -> bytes:
        if self._connection is not None:
            try:
                return self._exchange_once(method, path, body)
            except _CLOSED_WHILE_IDLE:
                if self._is_abandoned:
                    raise
                self.close()  # the tower had closed the idle connection: retry once
        return self._exchange_once(method, path, body)

    def _exchange_once(self, method: str, path: str, body: bytes | None) -> bytes:
        connection = self._connection = self._connection or self._connect()
        self._shown = self._token.headers()  # another thread may read a new token in the meantime
        headers = self._shown
        if body is not None:
            headers = {"Content-Type": "application/json", **headers}
        connection.request(method, self._prefix + path, body=body, headers=headers)
        with connection.getresponse() as response:
            answer = read_body(response, self._limits.max_bytes)
        if not 200 <= response.status < 300:
            raise _refused(response, answer)
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        connection = self._make_connection()
        limits = self._limits
        connection.response_class = bounded_reply(limits.reply_s, limits.max_bytes)
        try:
            connection.connect()
        except TimeoutError as error:
            raise UnreachableError(f"no connection within {limits.connect_s:g} s") from error
        except ssl.SSLError:
            raise
        except OSError as error:
            raise UnreachableError(self._explain(error)) from error
        return connection

    def _make_connection(self) -> http.client.HTTPConnection:
        timeout_s = self._limits.connect_s
        if not self._secure:
            return _OnePiece(self._host, self._port, timeout=timeout_s)
        try:
            context = trust(self._ca_file)
        except TlsError as error:
            raise TowerError(str(error)) from None
        return _OnePieceTls(self._host, self._port, timeout=timeout_s, context=context)

    def _explain(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self._limits.reply_s:g} s"
        if tls_error := explain(error):
            return tls_error
        if isinstance(error, http.client.RemoteDisconnected | http.client.BadStatusLine):
            return (
                "the server closed the connection without an HTTP reply: "
                "if it uses TLS, use https:// instead of http:// in the address"
            )
        if isinstance(error, http.client.IncompleteRead):
            return "the server closed the connection in the middle of its reply"
        if isinstance(error, socket.gaierror):
            return f"cannot resolve the host name: {error.strerror}"
        if isinstance(error, OSError) and error.strerror:
            return printable(error.strerror, MAX_DETAIL)
        if isinstance(error, ReplyTooLongError):
            return str(error)
        return printable(f"{type(error).__name__}: {error}".strip(": "), MAX_DETAIL)


def _refused(response: http.client.HTTPResponse, answer: bytes) -> RefusedError:
    content_type = response.getheader("Content-Type", "").partition(";")[0].strip().lower()
    is_problem = content_type == "application/problem+json"
    detail, title = _read_problem(answer) if is_problem else (None, "")
    is_final = detail is not None and response.status in NEVER
    digits = response.getheader("Retry-After", "")
    again_s = min(int(digits), MAX_RETRY_AFTER_S) if digits.isdigit() and len(digits) < 6 else 0
    return RefusedError(
        response.status, detail or "", permanent=is_final, title=title, retry_after_s=again_s
    )


def _read_problem(answer: bytes) -> tuple[str | None, str]:
    """Return detail and title of a problem of RFC 9457. The detail is None if it is not one."""
    try:
        problem = json.loads(answer)
        title = problem.get("title") or ""
        detail = problem.get("detail") or title
    except (ValueError, RecursionError, AttributeError):
        return None, ""
    if not isinstance(detail, str):
        return None, ""
    return printable(detail, MAX_DETAIL), title if isinstance(title, str) else ""
