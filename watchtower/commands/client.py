"""Asks a tower over HTTP, as any bot could. The standard library is enough for that.

The connection is that of `watchtower.access`, with the limits of a command.

Exit codes. They have the same meanings for all commands.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import quote, urlencode

from watchtower.access.tls import trust
from watchtower.access.tokens import FILE_VARIABLE, VARIABLE, ClientToken
from watchtower.access.tower_address import (
    AddressError,
    TowerAddress,
    check_token_is_safe,
    check_tower_urls,
    split_urls,
)
from watchtower.access.tower_connection import (
    NO_SUCH_ADDRESS,
    NoReplyError,
    RefusedError,
    ReplyLimits,
    TowerError,
    UnreachableError,
)
from watchtower.access.towers import Towers

TIMEOUT_S = 10.0
"""A tower answers in milliseconds. After this time without an answer it has failed."""

REPLY_S = 60.0
"""For a whole reply, however slowly it drips: the largest one at 10 Mbit/s."""

MAX_BYTES = 64 * 1024 * 1024
"""Larger than the largest answer about a job. A server that sends more is not a tower."""


_JOB = ("job", "status", "step", "world_size", "generation", "silenced_until", "detail")
_NODE = ("node", "has_agent", "is_silent")
_UNWATCHED = ("node", "job", "reason", "count", "text")
_ADVISORY = ("advisory", "level", "job", "node", "since", "text", "advice")
_OUTAGE = ("id", "opened_at", "shared_cause", "domain", "open_count", "rank_count", "incidents")
_INCIDENT = ("id", "job", "opened_at", "status", "cause", "suspect_ranks", "ack")
_SILENCE = ("id", "job", "node", "user", "until", "reason")
"""Fields by which a list of a tower differs from the JSON of another service."""


class ClientError(Exception):
    """The tower did not answer, or refused; the message has the reason and what to do."""


class NotFoundError(ClientError):
    """The tower has no such job, incident or silence."""


class NoAnswerError(ClientError):
    """No tower answers at the address, or the tower failed."""


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

        Several are separated by commas.

        `insecure` sends a token over plain HTTP too. Raises ClientError, TlsError.
        """
        token = token or ClientToken()
        try:
            self.url = check_tower_urls(url)
            check_token_is_safe(self.url, token, insecure=insecure)
        except AddressError as error:
            raise ClientError(str(error)) from None
        if any(each.startswith("https://") for each in split_urls(self.url)):
            trust(ca_file)
        self._connection = Towers(
            TowerAddress(url=self.url, token=token, ca_file=ca_file),
            ReplyLimits(connect_s=timeout_s, reply_s=REPLY_S, max_bytes=MAX_BYTES),
            failover_s=timeout_s,
        )

    def list_jobs(self, drills: bool = False, status: str = "") -> dict[str, Any]:
        """The API's answer about live jobs."""
        query = ({"drills": "true"} if drills else {}) | ({"status": status} if status else {})
        return self._list(f"/api/v1/jobs?{urlencode(query)}", *_JOB)

    def jobs(self) -> list[dict[str, Any]]:
        """Live jobs."""
        return _items(self.list_jobs())

    def unwatched(self, job: str = "", drills: bool = False) -> dict[str, Any]:
        """The API's answer about processes that seem to be ranks and are not watched."""
        query = ({"drills": "true"} if drills else {}) | ({"job": job} if job else {})
        answer = self._list(f"/api/v1/unwatched?{urlencode(query)}", *_UNWATCHED)
        if not _has(answer, ("rank_count",)):
            raise self._no_tower()
        return answer

    def nodes(self, limit: int = 100) -> dict[str, Any]:
        """The API's answer about nodes and their agents, the worst first."""
        answer = self._list(f"/api/v1/nodes?limit={limit}", *_NODE)
        if not _has(answer, ("connected", "silent", "rank_count")):
            raise self._no_tower()
        return answer

    def job(self, job: str) -> dict[str, Any]:
        """One live job with its ranks."""
        return self._json(f"/api/v1/jobs/{_quoted(job)}")

    def verdict(self, job: str) -> dict[str, Any]:
        """A job's verdict."""
        return self._json(f"/api/v1/jobs/{_quoted(job)}/verdict", "job", "status")

    def verdict_text(self, job: str, shape: str = "text") -> str:
        """A job's verdict as text, markdown or slack."""
        return self._get(f"/api/v1/jobs/{_quoted(job)}/verdict?format={shape}")

    def diagnose_now(self, job: str) -> dict[str, Any]:
        """Dump a job and return the verdict on it now."""
        path = f"/api/v1/jobs/{_quoted(job)}/verdict"
        return self._json(path, "job", "status", method="POST", sent={})

    def diagnose_now_text(self, job: str) -> str:
        """Dump a job and return the verdict on it now, as text."""
        return self._ask(f"/api/v1/jobs/{_quoted(job)}/verdict?format=text", "POST", {})

    def stacks(self, job: str, rank: int | None, *, all_threads: bool) -> dict[str, Any]:
        """Dump a job and return its stacks. `rank`: only of this rank."""
        query = {} if rank is None else {"rank": str(rank)}
        query |= {"all_threads": "true"} if all_threads else {}
        path = f"/api/v1/jobs/{_quoted(job)}/stacks?{urlencode(query)}"
        return self._json(path, "items", "left_out", "missing_evidence", method="POST", sent={})

    def list_incidents(self, limit: int = 100, **chosen: str) -> dict[str, Any]:
        """The API's answer about incidents, newest first. `chosen` are filters of the API."""
        query = {"limit": str(limit)} | {name: text for name, text in chosen.items() if text}
        return self._list(f"/api/v1/incidents?{urlencode(query)}", *_INCIDENT)

    def incidents(self, job: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Incidents, newest first."""
        return _items(self.list_incidents(limit, job=job or ""))

    def list_outages(self) -> dict[str, Any]:
        """The API's answer about outages, newest first."""
        return self._list("/api/v1/outages", *_OUTAGE)

    def list_advisories(
        self, job: str = "", node: str = "", drills: bool = False
    ) -> dict[str, Any]:
        """The API's answer about what is wrong with jobs and nodes although no job hangs."""
        query = {name: text for name, text in (("job", job), ("node", node)) if text}
        query |= {"drills": "true"} if drills else {}
        return self._list(f"/api/v1/advisories?{urlencode(query)}", *_ADVISORY)

    def configuration(self, job: str) -> dict[str, Any]:
        """What the ranks and nodes of a live job are set up with."""
        path = f"/api/v1/jobs/{_quoted(job)}/configuration"
        return self._json(path, "items", "known_ranks", "rank_count")

    def incident(self, incident: str) -> dict[str, Any]:
        """One incident with its verdict and stacks."""
        return self._json(f"/api/v1/incidents/{_quoted(incident)}", "id", "opened_at", "stacks")

    def incident_text(self, incident: str, shape: str = "text") -> str:
        """One incident's verdict as text, markdown or slack."""
        return self._get(f"/api/v1/incidents/{_quoted(incident)}?format={shape}")

    def similar(self, incident: str, limit: int) -> dict[str, Any]:
        """Earlier incidents with the same node, line or cause."""
        path = f"/api/v1/incidents/{_quoted(incident)}/similar?limit={limit}"
        return self._json(path, "items", "node_counts")

    def calibration(self) -> dict[str, Any]:
        """How often verdicts were right, by their confidence."""
        return self._json("/api/v1/calibration", "items", "causes", "right_count", "wrong_count")

    def export(self, incident: str, *, redact: bool = False) -> str:
        """Everything one incident was concluded from, as a JSON document."""
        query = "?redact=true" if redact else ""
        return self._get(f"/api/v1/incidents/{_quoted(incident)}/export{query}")

    def postmortem(self, incident: str, shape: str) -> str:
        """The post-mortem of one incident, as markdown or html."""
        return self._get(f"/api/v1/incidents/{_quoted(incident)}/postmortem?format={shape}")

    def metrics(self) -> str:
        """The tower's metrics as Prometheus reads them."""
        return self._get("/metrics")

    def list_silences(self) -> dict[str, Any]:
        """The API's answer about silences."""
        return self._list("/api/v1/silences", *_SILENCE)

    def silences(self) -> list[dict[str, Any]]:
        """Jobs, nodes and users whose alerts are silenced."""
        return _items(self.list_silences())

    def silence(
        self, kind: str, name: str, for_s: float, reason: str = "", by: str = ""
    ) -> dict[str, Any]:
        """Silence the alerts of a job, node or user for a while. `kind` is one of these words."""
        sent = {kind: name, "for_s": for_s, "reason": reason, "by": by or None}
        return self._json("/api/v1/silences", *_SILENCE, method="POST", sent=sent)

    def remove_silence(self, ident: str) -> dict[str, Any]:
        """End a silence."""
        path = f"/api/v1/silences/{_quoted(ident)}"
        return self._json(path, *_SILENCE, method="DELETE")

    def ack(self, incident: str, by: str = "", note: str = "") -> dict[str, Any]:
        """Acknowledge an incident."""
        sent = {"by": by or None, "note": note}
        return self._json(
            f"/api/v1/incidents/{_quoted(incident)}/ack", "by", method="POST", sent=sent
        )

    def judge(
        self,
        incident: str,
        *,
        right: bool,
        rank: int | None,
        cause: str | None,
        by: str,
        note: str,
    ) -> dict[str, Any]:
        """Answer whether the verdict of an incident was right."""
        sent = {"right": right, "rank": rank, "cause": cause, "by": by or None, "note": note}
        path = f"/api/v1/incidents/{_quoted(incident)}/feedback"
        return self._json(path, "right", "at", method="POST", sent=sent)

    def _list(self, path: str, *fields: str) -> dict[str, Any]:
        answer = self._json(path, "items")
        items = answer["items"]
        if not isinstance(items, list) or not all(_has(item, fields) for item in items):
            raise self._no_tower()
        return answer

    def _json(
        self, path: str, *fields: str, method: str = "GET", sent: object = None
    ) -> dict[str, Any]:
        """Ask for an object that has these fields: whatever listens on the port may answer."""
        try:
            answer = json.loads(self._ask(path, method, sent))
        except (ValueError, RecursionError):
            answer = None
        if not _has(answer, fields):
            raise self._no_tower()
        return cast(dict[str, Any], answer)

    def _no_tower(self) -> ClientError:
        return NoAnswerError(
            f"{self.url} does not answer like a watchtower tower: "
            "check the address and the path in --tower or WATCHTOWER_URL"
        )

    def _get(self, path: str) -> str:
        return self._ask(path, "GET", None)

    def _ask(self, path: str, method: str, sent: object) -> str:
        body = None if sent is None else json.dumps(sent).encode()
        try:
            answer = self._connection.exchange(method, path, body)
        except RefusedError as error:
            if error.status == HTTPStatus.NOT_FOUND and error.title == NO_SUCH_ADDRESS:
                raise self._no_tower() from None
            raise _refused(error) from None
        except TowerError as error:
            raise NoAnswerError(self._no_answer(error)) from None
        return answer.decode("utf-8", "replace")

    def _no_answer(self, error: TowerError) -> str:
        if isinstance(error, NoReplyError):
            return (
                f"the tower at {self.url} accepted the connection and did not answer in time: "
                "it is stopped or overloaded; read its log"
            )
        if isinstance(error, UnreachableError):
            return (
                f"no tower answers at {self.url} ({error.reason}); start one with "
                "`watchtower serve`, or name it with --tower or WATCHTOWER_URL"
            )
        return f"cannot talk to the tower at {self.url}: {error.reason}"


def _items(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return cast(list[dict[str, Any]], answer["items"])


def _has(answer: object, fields: Sequence[str]) -> bool:
    return isinstance(answer, dict) and all(field in answer for field in fields)


def _refused(error: RefusedError) -> ClientError:
    if error.status == HTTPStatus.NOT_FOUND and error.detail:
        return NotFoundError(error.detail)
    text = error.detail or f"the tower answered {error.reason}"
    if error.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        text += f" (it comes from --token-file, {FILE_VARIABLE} or {VARIABLE})"
    if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return NoAnswerError(text)
    return ClientError(text)


def _quoted(name: str) -> str:
    return quote(name, safe="")


DONE, TROUBLE, UNUSABLE, UNREACHABLE, NOT_FOUND = 0, 1, 2, 3, 4
NOT_WRITTEN, NOT_JUDGED, INTERRUPTED = 5, 6, 130

WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a write to an open file. Unlike an error of `open`, they do not name the file."""

MEANINGS = {
    DONE: "done, or healthy",
    TROUBLE: "trouble, or another answer than expected",
    UNUSABLE: "wrong usage: an option, a setting, a file, a token, or a refused request",
    UNREACHABLE: "no tower answers, or the tower failed",
    NOT_FOUND: "the tower has no such job, incident or silence",
    NOT_WRITTEN: "the output cannot be written, for example because the disk is full",
    NOT_JUDGED: "not judged yet: too little is known to call the job healthy",
    INTERRUPTED: "interrupted with Ctrl-C",
}


def exit_code_of(error: Exception) -> int:
    """Return the exit code for an error that ended a command."""
    if isinstance(error, NotFoundError):
        return NOT_FOUND
    if isinstance(error, OSError) and not error.filename and error.errno in WRITE_ERRORS:
        return NOT_WRITTEN
    return UNREACHABLE if isinstance(error, NoAnswerError) else UNUSABLE
