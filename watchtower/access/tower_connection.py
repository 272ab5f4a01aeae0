"""HTTP to the tower, for agent, commands and drills: one connection, kept open, within bounds.

Redirects and proxies are not used: a token goes to the tower that was named, or nowhere.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from watchtower.access.bounded_reply import ReplyTooLongError, bounded_reply, read_body
from watchtower.access.tls import TlsError, explain, trust
from watchtower.access.tokens import FILE_VARIABLE, VARIABLE, TokenError
from watchtower.access.tower_address import TowerAddress
from watchtower.printable import printable

NEVER = (400, 413, 422)
"""What a tower answers, as problem+json, to a message that it will not take later either. Anything
else may be over when the tower is back: a 404 of some other server, a token that people mend."""

_CLOSED_WHILE_IDLE = (
    http.client.RemoteDisconnected,
    BrokenPipeError,
    ConnectionResetError,
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
)
"""What a kept connection raises on its next use, in plain HTTP and in TLS, when the other end has
closed it meanwhile."""

MAX_DETAIL = 1000
"""Characters of the tower's explanation that go into a log line or on a terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyLimits:
    """How long to wait for a tower, and how much of its reply to read."""

    connect_s: float
    """To connect, to send a request, and between two pieces of a reply."""
    reply_s: float
    """For a whole reply."""
    max_bytes: int
    """Of the body of a reply."""


class TowerError(Exception):
    """The tower cannot be reached, or refuses; `reason` is a phrase for a log line."""

    permanent = False
    """Whether the same message would be refused for good."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class UnreachableError(TowerError):
    """No connection could be made: nothing listens there, or nothing leads there."""


class NoReplyError(TowerError):
    """A connection was made, and no whole reply came in time."""


class RefusedError(TowerError):
    """The tower answered, and did not do what was asked."""

    def __init__(self, status: int, detail: str, *, permanent: bool) -> None:
        """`detail` is what the tower says of it; empty when it says nothing."""
        more = ""
        if 300 <= status < 400:
            more = "(a redirect: give the address it leads to)"
        elif status == HTTPStatus.UNAUTHORIZED:
            more = f"(--token-file, {FILE_VARIABLE} or {VARIABLE})"
        super().__init__(" ".join(part for part in (f"HTTP {status}", detail, more) if part))
        self.status, self.detail, self.permanent = status, detail, permanent


class TowerConnection:
    """One keep-alive connection; for one thread at a time."""

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

    def get(self, path: str) -> bytes:
        """Return what the tower answers to a GET. Raises TowerError."""
        return self.exchange("GET", path)

    def post(self, path: str, body: bytes) -> bytes:
        """Send JSON and return what the tower answers. Raises TowerError."""
        return self.exchange("POST", path, body)

    def exchange(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """Send a request, with JSON where there is a body, and return the body of the reply.

        Raises TowerError.
        """
        try:
            return self._exchange_or_renew_token(method, path, body)
        except TowerError:
            raise
        except Exception as error:
            # Such as UnicodeError of a host name with an empty label. Whatever it is, the tower has
            # not refused this message.
            self.close()
            kind = NoReplyError if isinstance(error, TimeoutError) else TowerError
            raise kind(self._explain(error)) from error

    def close(self) -> None:
        """Drop the connection; the next call makes a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __del__(self) -> None:
        """Close it: a command asks once, and leaves the rest to the end of its process."""
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
        """Whether the token's file holds another one than was just refused."""
        try:
            return self._token.renew(self._shown)
        except TokenError as error:
            raise TowerError(str(error)) from None

    def _exchange_or_reconnect(self, method: str, path: str, body: bytes | None) -> bytes:
        if self._connection is not None:
            try:
                return self._exchange_once(method, path, body)
            except _CLOSED_WHILE_IDLE:
                self.close()  # the tower had closed the idle connection: not a failure, once
        return self._exchange_once(method, path, body)

    def _exchange_once(self, method: str, path: str, body: bytes | None) -> bytes:
        connection = self._connection = self._connection or self._connect()
        self._shown = self._token.headers()  # another thread may read a new one meanwhile
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
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        try:
            context = trust(self._ca_file)
        except TlsError as error:
            raise TowerError(str(error)) from None
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=timeout_s, context=context
        )

    def _explain(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self._limits.reply_s:g} s"
        if said := explain(error):
            return said
        if isinstance(error, http.client.RemoteDisconnected | http.client.BadStatusLine):
            return (
                "it closed the connection without an HTTP answer: "
                "is its address https:// instead of http://?"
            )
        if isinstance(error, http.client.IncompleteRead):
            return "it closed the connection in the middle of its reply"
        if isinstance(error, socket.gaierror):
            return f"its name cannot be resolved: {error.strerror}"
        if isinstance(error, OSError) and error.strerror:
            return printable(error.strerror, MAX_DETAIL)
        if isinstance(error, ReplyTooLongError):
            return str(error)
        return printable(f"{type(error).__name__}: {error}".strip(": "), MAX_DETAIL)


def _refused(response: http.client.HTTPResponse, answer: bytes) -> RefusedError:
    content_type = response.getheader("Content-Type", "").partition(";")[0].strip().lower()
    detail = _read_detail(answer) if content_type == "application/problem+json" else None
    is_final = detail is not None and response.status in NEVER
    return RefusedError(response.status, detail or "", permanent=is_final)


def _read_detail(answer: bytes) -> str | None:
    """Return the explanation in a problem of RFC 9457; None when it is none."""
    try:
        problem = json.loads(answer)
        detail = problem.get("detail") or problem.get("title") or ""
    except (ValueError, RecursionError, AttributeError):
        return None
    return printable(detail, MAX_DETAIL) if isinstance(detail, str) else None
