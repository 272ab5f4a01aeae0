"""Talks HTTP to the tower: one connection, kept open, with a deadline on every step."""

from __future__ import annotations

import http.client
import socket
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import msgspec

from agent.config import HTTP_TIMEOUT_S, MAX_REPLY_BYTES
from watchtower.access.bounded_reply import bounded_reply
from watchtower.access.tls import TlsError, explain, trust
from watchtower.access.tokens import ClientToken, TokenError
from watchtower.printable import printable

UNAUTHORIZED = 401

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
"""What a kept connection says on its next use, in plain HTTP and in TLS, when the other end has let
go of it meanwhile."""

MAX_DETAIL = 300
"""Characters of the tower's explanation that go into a log line."""


class TowerError(Exception):
    """The tower cannot be reached or does not want it; `permanent`: trying again is useless."""

    def __init__(self, reason: str, *, permanent: bool = False) -> None:
        """Keep the reason, a phrase for a log line."""
        super().__init__(reason)
        self.reason, self.permanent = reason, permanent


class _UnknownTokenError(TowerError):
    """The tower does not know our token, or wants one."""


class _Problem(msgspec.Struct):
    """application/problem+json (RFC 9457)."""

    title: str = ""
    detail: str = ""


_PROBLEMS = msgspec.json.Decoder(_Problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerAddress:
    """Where the tower is, and the token it knows us by."""

    url: str
    token: ClientToken = field(default_factory=ClientToken)
    ca_file: str = ""


class TowerConnection:
    """One keep-alive connection; made for one thread."""

    def __init__(self, address: TowerAddress) -> None:
        parts = urlsplit(address.url)
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._prefix = parts.path.rstrip("/")
        self._token = address.token
        self._shown: dict[str, str] = {}
        self._ca_file = address.ca_file
        self._connection: http.client.HTTPConnection | None = None

    def get(self, path: str) -> bytes:
        """Ask for something; TowerError says what went wrong."""
        return self._exchange("GET", path, None)

    def post(self, path: str, body: bytes) -> bytes:
        """Send JSON and return what the tower answered; TowerError says what went wrong."""
        return self._exchange("POST", path, body)

    def _exchange(self, method: str, path: str, body: bytes | None) -> bytes:
        try:
            return self._exchange_or_renew_token(method, path, body)
        except TowerError:
            raise
        except Exception as error:
            # Such as UnicodeError of a host name with an empty label. Whatever it is, it is no word
            # of the tower's about this message, which is kept.
            self.close()
            raise TowerError(_explain(error)) from error

    def _exchange_or_renew_token(self, method: str, path: str, body: bytes | None) -> bytes:
        try:
            return self._exchange_or_reconnect(method, path, body)
        except _UnknownTokenError:
            if not self._has_new_token():
                raise
        return self._exchange_or_reconnect(method, path, body)

    def _has_new_token(self) -> bool:
        """Whether the token's file holds another one than was just refused."""
        try:
            return self._token.renew(self._shown)
        except TokenError as error:
            raise TowerError(str(error)) from None

    def _exchange_or_reconnect(self, method: str, path: str, body: bytes | None) -> bytes:
        reused = self._connection is not None
        try:
            return self._exchange_once(method, path, body)
        except _CLOSED_WHILE_IDLE as error:
            self.close()
            if not reused:
                raise TowerError(_explain(error)) from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise TowerError(_explain(error)) from error
        # The tower had closed the idle connection: not a failure, once.
        try:
            return self._exchange_once(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise TowerError(_explain(error)) from error

    def close(self) -> None:
        """Drop the connection; the next call makes a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _exchange_once(self, method: str, path: str, body: bytes | None) -> bytes:
        connection = self._connection = self._connection or self._connect()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        self._shown = self._token.headers()  # another thread may read a new one meanwhile
        headers |= self._shown
        connection.request(method, self._prefix + path, body=body, headers=headers)
        with connection.getresponse() as response:
            answer = response.read(MAX_REPLY_BYTES + 1)
        if len(answer) > MAX_REPLY_BYTES:
            self.close()
            raise TowerError(f"the reply is longer than {MAX_REPLY_BYTES} bytes")
        if not 200 <= response.status < 300:
            raise _refused(response.status, answer, response.getheader("Content-Type", ""))
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        connection = self._make_connection()
        connection.response_class = bounded_reply(HTTP_TIMEOUT_S)
        return connection

    def _make_connection(self) -> http.client.HTTPConnection:
        if self._secure:
            try:
                context = trust(self._ca_file)
            except TlsError as error:
                raise TowerError(str(error)) from None
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=HTTP_TIMEOUT_S, context=context
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=HTTP_TIMEOUT_S)


def _refused(status: int, answer: bytes, content_type: str) -> TowerError:
    is_problem = content_type.partition(";")[0].strip().lower() == "application/problem+json"
    said = "" if status < 300 or status >= 400 else "(a redirect: give the address it leads to)"
    if is_problem:
        try:
            problem = _PROBLEMS.decode(answer)
            said = problem.detail or problem.title
        except (msgspec.MsgspecError, UnicodeDecodeError):
            is_problem = False
    reason = f"HTTP {status} {printable(said, MAX_DETAIL)}".strip()
    if status == UNAUTHORIZED:
        return _UnknownTokenError(f"{reason} (--token-file, WATCHTOWER_TOKEN)")
    return TowerError(reason, permanent=is_problem and status in NEVER)


def _explain(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {HTTP_TIMEOUT_S:g} s"
    if said := explain(error):
        return said
    if isinstance(error, http.client.RemoteDisconnected | http.client.BadStatusLine):
        return "it closed the connection without an HTTP answer: does it want https://?"
    if isinstance(error, socket.gaierror):
        return f"its name cannot be resolved: {error.strerror}"
    return printable(f"{type(error).__name__}: {error}".strip(": "), MAX_DETAIL)
