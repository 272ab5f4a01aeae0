"""The commands that ask a tower, once or again every second, as text or as JSON."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from watchtower.commands import listing
from watchtower.commands.client import ClientError, NotFoundError, TowerClient
from watchtower.commands.colours import paint_table, paint_verdict, wants_colour
from watchtower.commands.earlier import SHOWN_SIMILAR, earlier_text, write_feedback
from watchtower.commands.empty import explain_no_incidents, explain_no_jobs, list_unwatched
from watchtower.commands.exit_codes import DONE, NOT_JUDGED, TROUBLE
from watchtower.commands.outages import find_shared, write_outages
from watchtower.commands.printing import as_json, clean, clean_lines, table
from watchtower.service.command_line import suggest
from watchtower.writing.text import format_count
from watchtower.writing.times import format_time
from watchtower.writing.verdict_text import SHOWN_AFTERMATH

AGAIN_S = 1.0
"""Agents report once a second; asking more often shows nothing new."""

URGENT_FIRST = (
    "hung",
    "suspect",
    "slow",
    "monitoring_lost",
    "suspended",
    "recovered",
    "not_judged",
    "healthy",
    "ended",
)

IN_TROUBLE = ("hung", "suspect", "slow", "monitoring_lost")

MAX_VERDICTS = 5
"""Shown at once. More jobs in trouble probably have one cause; `watchtower jobs` lists them."""

MAX_NAMED = 20
"""Names in one sentence: more would not be read."""

KINDS = ("job", "node", "user")
"""The kinds of subjects that a silence may name."""

SHADOW_TEXT = "in shadow mode: no alert is sent"

CLEAR = "\x1b[H\x1b[2J"


def show_jobs(client: TowerClient, args: argparse.Namespace) -> int:
    """List the live jobs."""

    def text(answer: dict[str, Any]) -> str:
        if answer["items"]:
            shown = _jobs_text(answer["items"])
        else:
            shown = f"No job is {args.status}." if args.status else explain_no_jobs(client)
        return "\n".join([shown, *list_unwatched(client.unwatched(drills=args.drills))])

    _show(args, lambda: client.list_jobs(args.drills, args.status or ""), text, paint_table)
    return DONE


def show_verdict(client: TowerClient, args: argparse.Namespace) -> int:
    """Describe which rank hung a job, where and why. Without a name: each job in trouble, or else
    each one that is not judged yet.

    With --exit-code, returns 1 if one is in trouble, and 6 if one is not judged yet.
    """

    def ask() -> list[dict[str, Any]]:
        return [_verdict_of(client, args.job)] if args.job else _in_trouble(client)

    def text(verdicts: list[dict[str, Any]]) -> str:
        unwatched = list_unwatched(client.unwatched(str(verdicts[0]["job"]) if args.job else ""))
        if not verdicts:
            return "\n".join([_healthy_text(client.jobs()), *unwatched])
        blocks = [_verdict_text(client, verdict) for verdict in verdicts]
        if not args.job and all(each.get("not_judged") for each in verdicts):
            jobs = client.jobs()
            blocks = [_healthy_text(jobs), *blocks] if len(jobs) > 1 else blocks
        return "\n\n".join([*blocks, *(["\n".join(unwatched)] if unwatched else [])])

    def write(verdicts: list[dict[str, Any]]) -> str:
        return "\n".join(map(as_json, verdicts))

    verdicts = _show(args, ask, text, paint_verdict, write=write)
    return exit_code_for(verdicts) if args.exit_code else DONE


def exit_code_for(verdicts: Sequence[dict[str, Any]]) -> int:
    """Return the exit code for verdicts: trouble first, then jobs that are not judged yet."""
    if any(map(is_trouble, verdicts)):
        return TROUBLE
    return NOT_JUDGED if any(each.get("not_judged") for each in verdicts) else DONE


def is_trouble(verdict: dict[str, Any]) -> bool:
    """Whether a job is in trouble, or ended in an incident."""
    status = verdict["status"]
    return status in IN_TROUBLE or (status == "ended" and bool(verdict.get("incident")))


def _verdict_of(client: TowerClient, job: str) -> dict[str, Any]:
    try:
        return client.verdict(job)
    except NotFoundError as error:
        jobs = client.jobs()
        named = [str(one["job"]) for one in jobs if _is_called(one, job)]
        if len(named) == 1:
            return client.verdict(named[0])
        if named:
            shown = ", ".join(map(clean, named[:MAX_NAMED]))
            raise ClientError(f"several jobs are called {job!r}: {shown}") from None
        hint = suggest(job, (str(one["job"]) for one in jobs))
        raise NotFoundError(f"{error}.{clean(hint)}" if hint else str(error)) from None


def find_job(client: TowerClient, name: str) -> str:
    """Return the name of a job that is given by its name, or by its name or id in the scheduler."""
    return str(_verdict_of(client, name)["job"])


def _is_called(job: dict[str, Any], text: str) -> bool:
    """Whether a scheduler calls a job so, by name or by id."""
    labels = job.get("labels") or {}
    return text in (labels.get("name"), labels.get("scheduler_id"))


def _in_trouble(client: TowerClient) -> list[dict[str, Any]]:
    """Return the verdicts of jobs in trouble, the worst first; else of jobs that are not judged
    yet, or of the only job there is."""
    jobs = sorted(client.jobs(), key=_urgency)
    if not jobs:
        raise NotFoundError(explain_no_jobs(client))
    troubled = [job for job in jobs if job["status"] in IN_TROUBLE]
    troubled = troubled or [job for job in jobs if job.get("not_judged")]
    shown = troubled or (jobs if len(jobs) == 1 else [])
    return [client.verdict(str(job["job"])) for job in shown[:MAX_VERDICTS]]


def _healthy_text(jobs: list[dict[str, Any]]) -> str:
    ended = [job for job in jobs if job["status"] == "ended" and job.get("incident")]
    unjudged = [job for job in jobs if job.get("not_judged")]
    lines = [
        f"None of {format_count(len(jobs), 'job')} is in trouble: {_name_jobs(jobs)}. "
        "Describe one of them: watchtower why JOB"
    ]
    if unjudged:
        lines.append(f"Not judged yet: {_name_jobs(unjudged)}.")
    if ended:
        lines.append(f"Ended in an incident: {_name_jobs(ended)}. List them: watchtower incidents")
    return "\n".join(lines)


def _name_jobs(jobs: list[dict[str, Any]]) -> str:
    names = ", ".join(clean(str(job["job"])) for job in jobs[:MAX_NAMED])
    return f"{names} and {len(jobs) - MAX_NAMED} more" if len(jobs) > MAX_NAMED else names


def _verdict_text(client: TowerClient, verdict: dict[str, Any]) -> str:
    job, now = str(verdict["job"]), time.time()
    lines = [client.verdict_text(job).rstrip()]
    silences = [one for one in client.silences() if one["job"] == job]
    if verdict.get("incident"):
        known = [one for one in client.incidents(job) if one["id"] == verdict["incident"]]
        lines += [f"  {write_ack(one['ack'], now)}" for one in known if one.get("ack")]
        lines += [f"  {SHADOW_TEXT}" for one in known if one.get("shadow")]
        silences = [one["silence"] for one in known if one.get("silence")] or silences
    lines += [f"  {write_silence(each, now)}" for each in silences]
    return "\n".join(lines)


def show_incidents(client: TowerClient, args: argparse.Namespace) -> int:
    """List incidents."""

    def text(answer: dict[str, Any]) -> str:
        if not answer["items"]:
            return explain_no_incidents(client, listing.describe(args))
        return _incidents_text(answer["items"], time.time())

    def ask() -> dict[str, Any]:
        return client.list_incidents(args.limit, **listing.find_filters(args, time.time()))

    _show(args, ask, text, paint_table)
    return DONE


def show_outages(client: TowerClient, args: argparse.Namespace) -> int:
    """List outages: incidents of several jobs with one shared cause."""

    def text(answer: dict[str, Any]) -> str:
        return write_outages(answer["items"], time.time())

    _show(args, client.list_outages, text, paint_table)
    return DONE


def show_incident(client: TowerClient, args: argparse.Namespace) -> int:
    """Show one incident: its verdict, then the distinct stacks, the rarest first."""

    def text(incident: dict[str, Any]) -> str:
        now = time.time()
        verdict = client.incident_text(incident["id"]).rstrip()
        lines = [write_ack(incident["ack"], now)] if incident.get("ack") else []
        lines += [SHADOW_TEXT] if incident.get("shadow") else []
        lines += [write_silence(incident["silence"], now)] if incident.get("silence") else []
        history = _history_text(incident.get("verdicts") or [], now)
        after = _aftermath_text((incident.get("verdict") or {}).get("aftermath") or [], now)
        before = earlier_text(client.similar(incident["id"], SHOWN_SIMILAR), now)
        answered = [write_feedback(incident["feedback"], now)] if incident.get("feedback") else []
        outputs = [_output_text(each, now) for each in incident.get("outputs") or []]
        parts = [verdict, *lines, *history, *after, *before, *answered, *outputs]
        return "\n\n".join([*parts, *map(_stack_text, incident["stacks"])])

    _show(args, lambda: client.incident(args.incident), text, paint_verdict)
    return DONE


def _show(
    args: argparse.Namespace,
    ask: Callable[[], Any],
    text: Callable[[Any], str],
    paint: Callable[[str], str],
    write: Callable[[Any], str] = as_json,
) -> Any:
    """Print an answer and return it; with --watch again whenever it changes."""
    shown, is_terminal = None, sys.stdout.isatty()
    while True:
        try:
            answer = ask()
            page = write(answer) if args.json else clean_lines(text(answer))
            # A time such as "3 min ago" changes by itself: only a terminal needs it again.
            state = page if is_terminal or args.json else answer
        except ClientError:
            if not args.watch or shown is None:
                raise
            page = state = "the tower does not answer"
        if state != shown:
            if args.watch and not args.json and is_terminal:
                print(CLEAR, end="")
            is_coloured = not args.json and wants_colour(sys.stdout, os.environ)
            if page:
                print(paint(page) if is_coloured else page, flush=True)
            shown = state
        if not args.watch:
            return answer
        time.sleep(AGAIN_S)


def _jobs_text(jobs: list[dict[str, Any]]) -> str:
    rows: list[tuple[str, ...]] = [
        ("JOB", "NAME", "USER", "STATUS", "STEP", "RANKS", "ATTEMPT", "SILENCED", "DETAIL")
    ]
    for job in sorted(jobs, key=_urgency):
        step = "-" if job["step"] is None else str(job["step"])
        until = format_time(job["silenced_until"], time.time()) if job["silenced_until"] else "-"
        labels = job.get("labels") or {}
        called = (labels.get("name") or "-", labels.get("user") or "-")
        status, detail = job["status"], job["detail"]
        if not_judged := job.get("not_judged"):
            status, detail = not_judged["text"], "; ".join(not_judged["missing"])
        sizes = (step, job["world_size"], job["generation"], until)
        rows.append((job["job"], *called, status, *map(str, sizes), detail))
    return table(rows)


def _urgency(job: dict[str, Any]) -> int:
    status = "not_judged" if job.get("not_judged") else job["status"]
    return URGENT_FIRST.index(status) if status in URGENT_FIRST else len(URGENT_FIRST)


def _incidents_text(incidents: list[dict[str, Any]], now: float) -> str:
    shared = find_shared(incidents)
    last = ("OUTAGE",) if shared else ()
    first = ("INCIDENT", "OPENED", "JOB", "STATUS", "CAUSE", "ALERT", "ACKNOWLEDGED", "RANKS")
    rows: list[tuple[str, ...]] = [(*first, *last)]
    for one in incidents:
        opened = format_time(one["opened_at"], now)
        cause, ranks = one["cause"] or "-", one["suspect_ranks"] or "-"
        ack = "-" if one["ack"] is None else one["ack"]["by"] or "yes"
        outage = (one["outage"] if one.get("outage") in shared else "-",) if shared else ()
        known = (one["id"], opened, one["job"], one["status"], cause, _write_alert(one), ack, ranks)
        rows.append((*known, *outage))
    return table(rows)


def _write_alert(incident: dict[str, Any]) -> str:
    """Return why an incident has no alert, in one word; "-" if it has one."""
    if incident.get("shadow"):
        return "shadow"
    return "silenced" if incident.get("silence") else "-"


def write_ack(ack: dict[str, Any], now: float) -> str:
    """Return who acknowledged an incident, when, and the note."""
    by, note = ack["by"] and f" by {ack['by']}", ack["note"] and f": {ack['note']}"
    return clean(f"acknowledged {format_time(ack['at'], now)}{by}{note}")


def kind_of(silence: dict[str, Any]) -> str:
    """Return whether a silence names a job, a node or a user."""
    return next((kind for kind in KINDS if silence[kind] is not None), "job")


def write_silence(silence: dict[str, Any], now: float) -> str:
    """Return which alerts are silenced, until when, and why."""
    kind = kind_of(silence)
    reason = silence["reason"] and f": {silence['reason']}"
    until = format_time(silence["until"], now)
    return clean(f"alerts of {kind} {silence[kind]} are silenced until {until}{reason}")


def _history_text(entries: list[dict[str, Any]], now: float) -> list[str]:
    """List the verdicts of an incident, if there was more than one."""
    if len(entries) < 2:
        return []
    lines = ["verdicts:"]
    for entry in entries:
        ranks = f" of ranks {entry['suspect_ranks']}" if entry["suspect_ranks"] else ""
        at = format_time(entry["at"], now)
        lines.append(f"    {at} {entry['cause']}{ranks} ({entry['confidence']:.0%})")
    return ["\n".join(map(clean, lines))]


def _aftermath_text(entries: list[dict[str, Any]], now: float) -> list[str]:
    """List what happened after the opening, if there is more than the verdict's text shows."""
    if len(entries) <= SHOWN_AFTERMATH:
        return []
    lines = [
        f"    {format_time(entry['at'], now)} ranks {entry['ranks'] or '-'}: {entry['text']}"
        for entry in entries
    ]
    return ["\n".join(map(clean, ["afterwards:", *lines]))]


def _output_text(output: dict[str, Any], now: float) -> str:
    """Return the last lines that a suspect wrote."""
    written = format_time(output["written_at"], now)
    head = f"last lines of rank {output['rank']} ({output['stream']}, written {written}):"
    return "\n".join([head, *(f"  {line}" for line in output["lines"] or ["(none)"])])


def _stack_text(stack: dict[str, Any]) -> str:
    lines = [f"ranks {stack['ranks']}, innermost frame first:"]
    for frame in stack["frames"]:
        lines.append(f"    {frame['function']} ({frame['file']}:{frame['line']})")
    return "\n".join(map(clean, lines))
