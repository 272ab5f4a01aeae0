"""POST /slack/commands: `/watchtower why JOB`, `jobs`, `incidents`, `ack ID`, `diagnose`, `help`.

Slack's signature allows it instead of a token, so this application is before the guard of tokens.
All other requests go on to the tower's. Without a signing secret it is not there, and the path does
not exist. Each answer is a message that only the asking person sees.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from watchtower.access.slack_signature import SlackSignatures
from watchtower.alerts.labels import AlertLinks
from watchtower.api.answers import about_verdict, find_buttons
from watchtower.api.intake import RefusedError, read_body
from watchtower.api.problems import describe_failure, problem
from watchtower.api.security import Refusals, client_of
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.fleet.found_case import UnusableTextError, read_pasted
from watchtower.incidents.incident_filter import IncidentFilter
from watchtower.jobs.verdicts import diagnosed_verdict
from watchtower.service.calls import timeout
from watchtower.tower.acts import RequestRefusedError
from watchtower.tower.store_writer import StoreFailedError
from watchtower.tower.stored_incidents import (
    AmbiguousIdError,
    find_incident_id,
    job_verdict,
    list_incidents,
)
from watchtower.tower.tower import Tower
from watchtower.views.fleet import JobSummary, summarize_jobs
from watchtower.views.incident import IncidentSummary
from watchtower.wire.bounds import MAX_NAME, MAX_TEXT
from watchtower.wire.verdict import TROUBLED, Status, Verdict, rank_severity
from watchtower.writing import slack_blocks
from watchtower.writing.text import clean
from watchtower.writing.times import format_moment
from watchtower.writing.verdict_text import About, render_slack_blocks

MAX_ROWS = 20
"""Rows of a list: more do not fit into a code block of Slack."""

MAX_JOB = 60
"""Characters of a job in a list."""

HELP = (
    "why JOB - which rank hung the job, where and why",
    "jobs - the live jobs, those in trouble first",
    "incidents - the newest incidents",
    "ack ID [NOTE] - acknowledge an incident: its alert ends",
    "diagnose TEXT - the verdict on lines of a log, or on stacks, that you paste",
    "help - this list",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A command as Slack sends it."""

    text: str
    user: str
    """Slack's id of the person: "U0123ABCD"."""
    name: str
    """The name of the person in Slack."""
    command: str = "/watchtower"


class SlackAnswers:
    """Answers the commands of people about one tower."""

    def __init__(self, tower: Tower, links: AlertLinks, ack_users: frozenset[str]) -> None:
        """`ack_users` are Slack's ids of the people who may acknowledge."""
        self._tower, self._links, self._ack_users = tower, links, ack_users

    async def answer(self, asked: Asked) -> slack_blocks.Block:
        """Return the message."""
        word, _, rest = asked.text.strip().partition(" ")
        try:
            match word.lower():
                case "why":
                    return await self._why(rest.strip())
                case "jobs":
                    return self._jobs()
                case "incidents":
                    return await self._incidents()
                case "ack":
                    return await self._ack(asked, rest.strip())
                case "diagnose":
                    return await self._diagnose(rest)
                case "" | "help":
                    return _reply(f"{asked.command} COMMAND", HELP)
        except (AmbiguousIdError, RequestRefusedError, StoreFailedError) as error:
            return _reply(str(error))
        return _reply(f"There is no command {clean(word, 32)!r}.", HELP)

    async def _why(self, name: str) -> slack_blocks.Block:
        if not name:
            return _reply("Name a job: why JOB", _rows(self._list_jobs()))
        found = await job_verdict(self._tower, self._find_job(name))
        if found is None:
            return _reply(f"There is no job {clean(name)!r}.", _rows(self._list_jobs()))
        buttons = find_buttons(found, self._links)
        return render_slack_blocks(found.verdict, about_verdict(found, self._links), buttons)

    async def _diagnose(self, text: str) -> slack_blocks.Block:
        """Return the verdict on a text that a person pasted. No job and no store is asked."""
        if not text.strip():
            return _reply("Paste lines of a log, or stacks: diagnose TEXT")
        try:
            verdict = await asyncio.to_thread(_diagnose_pasted, text)
        except UnusableTextError as error:
            return _reply(f"There is no verdict: {error}.")
        return render_slack_blocks(verdict, About(), {})

    def _find_job(self, name: str) -> str:
        """Return the job with this name, or the only one that its scheduler calls so."""
        jobs = self._list_jobs()
        called = [
            each.job
            for each in jobs
            if name in (each.labels.get("name"), each.labels.get("scheduler_id"))
        ]
        is_known = any(each.job == name for each in jobs)
        return called[0] if len(called) == 1 and not is_known else name

    def _list_jobs(self) -> list[JobSummary]:
        return sorted(summarize_jobs(self._tower.moment()), key=_urgency)

    def _jobs(self) -> slack_blocks.Block:
        jobs = self._list_jobs()
        troubled = sum(each.status in TROUBLED for each in jobs)
        number = "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"
        return _reply(f"{number}, {troubled} in trouble", _rows(jobs))

    async def _incidents(self) -> slack_blocks.Block:
        page = await list_incidents(self._tower, IncidentFilter(drills=False), MAX_ROWS)
        if not page.items:
            return _reply("There is no incident.")
        return _reply("The newest incidents:", tuple(map(_incident_row, page.items)))

    async def _ack(self, asked: Asked, rest: str) -> slack_blocks.Block:
        if asked.user not in self._ack_users:
            return _reply(
                f"You ({clean(asked.user, 32)}) may not acknowledge. An operator of watchtower "
                "can add this id to `slack_ack_users`."
            )
        ident, _, note = rest.partition(" ")
        if not ident:
            return _reply("Name an incident: ack ID")
        tower = self._tower
        found = await find_incident_id(tower, ident)
        by = clean(f"{asked.name} (Slack {asked.user})", MAX_NAME)
        ack = await tower.acks.ack(found, by, clean(note, MAX_TEXT)) if found else None
        if ack is None:
            return _reply(f"There is no incident {clean(ident, 64)!r}.")
        return _reply(f"{found} is acknowledged by {by}.")


def _diagnose_pasted(text: str) -> Verdict:
    case, found = read_pasted(text)
    status = Status.HUNG if found.has_timed_out else Status.SUSPECT
    return diagnosed_verdict(case.job, 1, status, diagnose(case), time.time())


def _reply(text: str, lines: tuple[str, ...] = ()) -> slack_blocks.Block:
    blocks = [slack_blocks.section(text)]
    if lines:
        blocks.append(slack_blocks.code(lines))
    return slack_blocks.message(slack_blocks.escape(text), blocks)


def _urgency(job: JobSummary) -> tuple[float, str]:
    return rank_severity(job.status.value, job.not_judged is None), job.job


def _rows(jobs: list[JobSummary]) -> tuple[str, ...]:
    rows = [
        f"{_word(each):<9} {clean(each.job, MAX_JOB)}  step {_known(each.step)}, "
        f"{each.world_size} ranks, {clean(each.labels.get('user') or each.owner or '-', 32)}"
        for each in jobs[:MAX_ROWS]
    ]
    more = len(jobs) - MAX_ROWS
    return (*rows, f"and {more} more") if more > 0 else tuple(rows)


def _word(job: JobSummary) -> str:
    return job.status.value if job.not_judged is None else job.not_judged.text


def _incident_row(incident: IncidentSummary) -> str:
    cause = incident.cause.value if incident.cause else "-"
    ack = f", acknowledged by {clean(incident.ack.by, 32)}" if incident.ack else ""
    job, ranks = clean(incident.job, MAX_JOB), clean(incident.suspect_ranks, 24) or "-"
    opened = format_moment(incident.opened_at)
    return f"{incident.id}  {opened}  {incident.status.value} {job}: {cause}, ranks {ranks}{ack}"


def _known(step: int | None) -> str:
    return "-" if step is None else str(step)


PATH = "/slack/commands"

MAX_BODY = 16 * 1024
"""Bytes of a command. Slack's fields and the text of a person have some 1 KB."""

MAX_FIELDS = 64
"""Fields of a command: Slack sends some 15."""

ANSWER_S = 2.5
"""Seconds for an answer: after 3 s Slack shows an error instead."""

LATE = "The tower is busy. Try again."

log = logging.getLogger("watchtower.api")


class SlackCommands:
    """ASGI application in front of the tower's."""

    def __init__(
        self,
        app: ASGIApp,
        answers: SlackAnswers,
        signatures: SlackSignatures,
        refusals: Refusals,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._app, self._answers, self._signatures = app, answers, signatures
        self._refusals, self._wall = refusals, wall

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            response = await self._answer(Request(scope, receive))
        except RefusedError as error:
            response = problem(error.status, error.detail)
        except Exception as error:
            log.exception("a command of Slack failed")
            response = problem(500, describe_failure(error))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        stamp = request.headers.get("x-slack-request-timestamp", "")
        signature = request.headers.get("x-slack-signature", "")
        fault = self._signatures.find_fault(stamp, signature, self._wall())
        if not fault:
            body = await read_body(request, MAX_BODY, lambda size: None)
            fault = self._signatures.accept(stamp, signature, body, self._wall())
        if fault:
            self._refusals.add("bad_signature", client_of(request.scope), time.monotonic())
            return problem(401, fault)
        try:
            async with timeout(ANSWER_S):
                message = await self._answers.answer(_read_command(body))
        except asyncio.TimeoutError:
            message = slack_blocks.message(LATE, [slack_blocks.section(LATE)])
        return JSONResponse({"response_type": "ephemeral", **message})


def _read_command(body: bytes) -> Asked:
    """Return the command in a form. Raises RefusedError."""
    try:
        fields = parse_qs(body.decode("utf-8"), max_num_fields=MAX_FIELDS)
    except (UnicodeDecodeError, ValueError):
        raise RefusedError(400, "the command is not a form") from None

    def first(name: str) -> str:
        return fields.get(name, [""])[0]

    return Asked(
        text=first("text"),
        user=first("user_id"),
        name=first("user_name") or first("user_id"),
        command=first("command") or "/watchtower",
    )
