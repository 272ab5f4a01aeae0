"""Asks a tower over HTTP, as any bot could. The standard library is enough for that.

Redirects and proxies are not used: a token goes to the tower that was named, or nowhere.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from http import HTTPStatus
from typing import IO, Any, cast

from watchtower.access.bounded_reply import bounded_reply
from watchtower.access.tls import SHOWN_TOKEN, explain, trust, would_show_token
from watchtower.access.tokens import FILE_VARIABLE, VARIABLE, ClientToken
from watchtower.access.tower_address import AddressError, check_tower_url

TIMEOUT_S = 10.0
"""A tower answers in milliseconds. After this time without an answer it has failed."""

REPLY_S = 60.0
"""For a whole reply, however slowly it drips: the largest one at 10 Mbit/s."""

MAX_BYTES = 64 * 1024 * 1024
"""Larger than the largest answer about a job. A server that sends more is not a tower."""


_JOB = ("job", "status", "step", "world_size", "generation", "muted_until", "detail")
_INCIDENT = ("id", "job", "opened_at", "status", "cause", "suspect_ranks", "ack")
"""Fields by which a list of a tower differs from the JSON of another service."""


class ClientError(Exception):
    """The tower did not answer, or refused; the message has the reason and what to do."""


class NotFoundError(ClientError):
    """The tower has no such job, incident or silence."""


class NoAnswerError(ClientError):
    """No tower answers at the address, or the tower failed."""


class UnknownTokenError(ClientError):
    """The tower wants a token, and not the one it was shown."""


class TowerClient:
    """Requests on one tower's API."""

    def __init__(
        self,
        url: str,
        timeout_s: float = TIMEOUT_S,
        *,
        token: ClientToken | None = None,
        ca_file: str = "",
        insecure: bool = False,
    ) -> None:
        """`url` is what `watchtower serve` prints first, such as http://127.0.0.1:19660.

        `insecure` sends a token over plain HTTP too. Raises ClientError, TlsError.
        """
        try:
            self.url = check_tower_url(url)
        except AddressError as error:
            raise ClientError(str(error)) from None
        self._token = token or ClientToken()
        if self._token and would_show_token(url) and not insecure:
            raise ClientError(SHOWN_TOKEN)
        self._timeout_s = timeout_s
        secure = url.startswith("https://")
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            _NoRedirects,
            _Https(context=trust(ca_file)) if secure else _Http,
        )

    def list_jobs(self, drills: bool = False) -> dict[str, Any]:
        """The API's answer about live jobs."""
        return self._list(f"/api/v1/jobs{'?drills=true' if drills else ''}", *_JOB)

    def jobs(self) -> list[dict[str, Any]]:
        """Live jobs."""
        return _items(self.list_jobs())

    def agents(self) -> dict[str, Any]:
        """The API's answer about connected agents."""
        return self._json("/api/v1/agents", "items", "connected", "silent", "rank_count")

    def job(self, job: str) -> dict[str, Any]:
        """One live job with its ranks."""
        return self._json(f"/api/v1/jobs/{_quoted(job)}")

    def verdict(self, job: str) -> dict[str, Any]:
        """A job's verdict."""
        return self._json(f"/api/v1/jobs/{_quoted(job)}/verdict", "job", "status")

    def verdict_text(self, job: str, shape: str = "text") -> str:
        """A job's verdict as text, markdown or slack."""
        return self._get(f"/api/v1/jobs/{_quoted(job)}/verdict?format={shape}")

    def list_incidents(
        self, job: str | None = None, limit: int = 100, drills: bool = False
    ) -> dict[str, Any]:
        """The API's answer about incidents, newest first."""
        query = {"limit": str(limit)} | ({"job": job} if job else {})
        query |= {"drills": "true"} if drills else {}
        return self._list(f"/api/v1/incidents?{urllib.parse.urlencode(query)}", *_INCIDENT)

    def incidents(self, job: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Incidents, newest first."""
        return _items(self.list_incidents(job, limit))

    def incident(self, incident: str) -> dict[str, Any]:
        """One incident with its verdict and stacks."""
        return self._json(f"/api/v1/incidents/{_quoted(incident)}", "id", "opened_at", "stacks")

    def incident_text(self, incident: str, shape: str = "text") -> str:
        """One incident's verdict as text, markdown or slack."""
        return self._get(f"/api/v1/incidents/{_quoted(incident)}?format={shape}")

    def export(self, incident: str) -> str:
        """Everything one incident was concluded from, as a JSON document."""
        return self._get(f"/api/v1/incidents/{_quoted(incident)}/export")

    def metrics(self) -> str:
        """The tower's metrics as Prometheus reads them."""
        return self._get("/metrics")

    def mutes(self) -> list[dict[str, Any]]:
        """Jobs whose alerts are silenced."""
        return _items(self._list("/api/v1/mutes", "job", "until", "reason"))

    def mute(self, job: str, for_s: float, reason: str = "") -> dict[str, Any]:
        """Silence the alerts of a job for a while."""
        said = {"for_s": for_s, "reason": reason}
        return self._json(f"/api/v1/jobs/{_quoted(job)}/mute", "until", method="POST", said=said)

    def unmute(self, job: str) -> dict[str, Any]:
        """End the silence of a job."""
        return self._json(f"/api/v1/jobs/{_quoted(job)}/mute", method="DELETE")

    def ack(self, incident: str, by: str = "", note: str = "") -> dict[str, Any]:
        """Acknowledge an incident."""
        said = {"by": by, "note": note}
        return self._json(
            f"/api/v1/incidents/{_quoted(incident)}/ack", "by", method="POST", said=said
        )

    def _list(self, path: str, *fields: str) -> dict[str, Any]:
        answer = self._json(path, "items")
        items = answer["items"]
        if not isinstance(items, list) or not all(_has(item, fields) for item in items):
            raise self._no_tower()
        return answer

    def _json(
        self, path: str, *fields: str, method: str = "GET", said: object = None
    ) -> dict[str, Any]:
        """Ask for an object that has these fields: whatever listens on the port may answer."""
        try:
            answer = json.loads(self._ask(path, method, said))
        except (ValueError, RecursionError):
            answer = None
        if not _has(answer, fields):
            raise self._no_tower()
        return cast(dict[str, Any], answer)

    def _no_tower(self) -> ClientError:
        return NoAnswerError(f"{self.url} does not answer like a watchtower tower")

    def _get(self, path: str) -> str:
        return self._ask(path, "GET", None)

    def _ask(self, path: str, method: str, said: object) -> str:
        shown = self._token.headers()
        try:
            return self._ask_once(path, method, said)
        except UnknownTokenError:
            if not self._token.renew(shown):
                raise
        return self._ask_once(path, method, said)  # the file holds another token than before

    def _ask_once(self, path: str, method: str, said: object) -> str:
        headers = self._token.headers()
        body = None if said is None else json.dumps(said).encode()
        if body is not None:
            headers = {**headers, "Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, method=method, data=body, headers=headers)
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                answer = response.read(MAX_BYTES + 1)
        except urllib.error.HTTPError as error:
            raise _refused(error) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise NoAnswerError(self._no_answer(error)) from None
        if len(answer) > MAX_BYTES:
            raise NoAnswerError(f"{self.url} sends more than {MAX_BYTES} bytes: it is not a tower")
        return str(answer.decode("utf-8", "replace"))

    def _no_answer(self, error: Exception) -> str:
        reason = getattr(error, "reason", error)
        if isinstance(reason, BaseException) and (said := explain(reason)):
            return f"cannot talk to the tower at {self.url}: {said}"
        if isinstance(error, TimeoutError):  # of a connection that was made: urllib wraps others
            return (
                f"the tower at {self.url} took the connection and did not answer in time: "
                "it is stopped or overloaded, look at its log"
            )
        if isinstance(error, http.client.RemoteDisconnected | http.client.BadStatusLine):
            reason = "no HTTP: is its address https:// instead of http://?"
        return (
            f"no tower answers at {self.url} ({reason}); start one with `watchtower serve`, "
            "or name it with --tower or WATCHTOWER_URL"
        )


def _bound(connection: http.client.HTTPConnection) -> http.client.HTTPConnection:
    connection.response_class = bounded_reply(REPLY_S)
    return connection


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open a connection whose replies end in time."""
        return self.do_open(lambda *to, **how: _bound(http.client.HTTPConnection(*to, **how)), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._trust = context

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Open a connection whose replies end in time."""
        make = http.client.HTTPSConnection
        return self.do_open(lambda *to, **how: _bound(make(*to, context=self._trust, **how)), req)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: the token would go to whoever it names."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> None:
        """Follow none."""


def _items(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return cast(list[dict[str, Any]], answer["items"])


def _has(answer: object, fields: Sequence[str]) -> bool:
    return isinstance(answer, dict) and all(field in answer for field in fields)


def _refused(error: urllib.error.HTTPError) -> ClientError:
    detail = _detail(error)
    if error.code == HTTPStatus.NOT_FOUND:
        return NotFoundError(detail)
    if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        detail += f" (it comes from --token-file, {FILE_VARIABLE} or {VARIABLE})"
    if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return NoAnswerError(detail)
    return (UnknownTokenError if error.code == HTTPStatus.UNAUTHORIZED else ClientError)(detail)


def _detail(error: urllib.error.HTTPError) -> str:
    try:
        said = str(json.loads(error.read(65536))["detail"])
        return "".join(c if c.isprintable() else "?" for c in said)
    except (OSError, ValueError, KeyError, TypeError):
        return f"the tower answered {error.code} {error.reason}"


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")
