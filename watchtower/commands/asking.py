"""The commands that ask a tower, once or again every second, as text or as JSON.

The command `calibration`: how often verdicts were right, by their confidence.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from watchtower.commands import options
from watchtower.commands.client import (
    DONE,
    NOT_JUDGED,
    TROUBLE,
    ClientError,
    NotFoundError,
    TowerClient,
)
from watchtower.commands.printing import (
    as_json,
    as_yaml,
    clean,
    clean_lines,
    paint_table,
    paint_verdict,
    wants_colour,
)
from watchtower.commands.texts import (
    MAX_NAMED,
    SHADOW_TEXT,
    SHOWN_SIMILAR,
    explain_no_incidents,
    explain_no_jobs,
    list_unwatched,
    rank_urgency,
    write_ack,
    write_advisories,
    write_aftermath,
    write_calibration,
    write_earlier,
    write_feedback,
    write_healthy,
    write_history,
    write_incidents,
    write_jobs,
    write_nodes,
    write_outages,
    write_output,
    write_silence,
    write_silences,
    write_stack,
)
from watchtower.service.command_line import suggest
from watchtower.wire.verdict import TROUBLED

AGAIN_S = 1.0
"""Agents report once a second; asking more often shows nothing new."""


_TROUBLED = frozenset(status.value for status in TROUBLED)

MAX_VERDICTS = 5
"""Shown at once. More jobs in trouble probably have one cause; `watchtower jobs` lists them."""


CLEAR = "\x1b[H\x1b[2J"


def show_jobs(client: TowerClient, args: argparse.Namespace) -> int:
    """List the live jobs."""

    def text(answer: dict[str, Any]) -> str:
        if answer["items"]:
            shown = write_jobs(answer["items"], wide=args.form == "wide")
        else:
            shown = f"No job is {args.status}." if args.status else explain_no_jobs(client)
        return "\n".join([shown, *list_unwatched(client.unwatched(drills=args.drills))])

    ask = partial(client.list_jobs, args.drills, args.status or "")
    _show(args, ask, text, paint_table, key="job")
    return DONE


def show_nodes(client: TowerClient, args: argparse.Namespace) -> int:
    """List the nodes with their agents and incidents."""

    def text(answer: dict[str, Any]) -> str:
        if not answer["items"]:
            return "No nodes: no agent has reported yet."
        return write_nodes(answer, wide=args.form == "wide")

    _show(args, partial(client.nodes, args.limit), text, paint_table, key="node")
    return DONE


def show_silences(client: TowerClient, args: argparse.Namespace) -> int:
    """List the silences in force."""

    def text(answer: dict[str, Any]) -> str:
        return write_silences(answer["items"], time.time())

    _show(args, client.list_silences, text, paint_table)
    return DONE


def show_verdict(client: TowerClient, args: argparse.Namespace) -> int:
    """Describe which rank hung a job, where and why. Without a name: each job in trouble, or else
    each one that is not judged yet.

    With --exit-code, returns 1 if one is in trouble, and 6 if one is not judged yet.
    """

    def ask() -> list[dict[str, Any]]:
        return [verdict_of(client, args.job)] if args.job else _in_trouble(client)

    def text(verdicts: list[dict[str, Any]]) -> str:
        unwatched = list_unwatched(client.unwatched(str(verdicts[0]["job"]) if args.job else ""))
        if not verdicts:
            return "\n".join([write_healthy(client.jobs()), *unwatched])
        blocks = [_verdict_text(client, verdict) for verdict in verdicts]
        if not args.job and all(each.get("not_judged") for each in verdicts):
            jobs = client.jobs()
            blocks = [write_healthy(jobs), *blocks] if len(jobs) > 1 else blocks
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
    return status in _TROUBLED or (status == "ended" and bool(verdict.get("incident")))


def verdict_of(client: TowerClient, job: str) -> dict[str, Any]:
    """Return the verdict of a job that is given by its name, or by its name or id in the scheduler.

    Raises ClientError.
    """
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
    return str(verdict_of(client, name)["job"])


def _is_called(job: dict[str, Any], text: str) -> bool:
    """Whether a scheduler calls a job so, by name or by id."""
    labels = job.get("labels") or {}
    return text in (labels.get("name"), labels.get("scheduler_id"))


def _in_trouble(client: TowerClient) -> list[dict[str, Any]]:
    """Return the verdicts of jobs in trouble, the worst first; else of jobs that are not judged
    yet, or of the only job there is."""
    jobs = sorted(client.jobs(), key=rank_urgency)
    if not jobs:
        raise NotFoundError(explain_no_jobs(client))
    troubled = [job for job in jobs if job["status"] in _TROUBLED]
    troubled = troubled or [job for job in jobs if job.get("not_judged")]
    shown = troubled or (jobs if len(jobs) == 1 else [])
    return [client.verdict(str(job["job"])) for job in shown[:MAX_VERDICTS]]


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
            return explain_no_incidents(client, options.describe(args))
        return write_incidents(answer["items"], time.time(), wide=args.form == "wide")

    def ask() -> dict[str, Any]:
        return client.list_incidents(args.limit, **options.find_filters(args, time.time()))

    _show(args, ask, text, paint_table)
    return DONE


def show_outages(client: TowerClient, args: argparse.Namespace) -> int:
    """List outages: incidents of several jobs with one shared cause."""

    def text(answer: dict[str, Any]) -> str:
        return write_outages(answer["items"], time.time())

    _show(args, client.list_outages, text, paint_table)
    return DONE


def show_advisories(client: TowerClient, args: argparse.Namespace) -> int:
    """List what is wrong with jobs and nodes although no job hangs.

    With --exit-code, returns 1 if anything is.
    """

    def ask() -> dict[str, Any]:
        job = find_job(client, args.job) if args.job else ""
        return client.list_advisories(job, args.node or "", args.drills)

    def text(answer: dict[str, Any]) -> str:
        return write_advisories(answer, time.time())

    answer = _show(args, ask, text, paint_table)
    return TROUBLE if args.exit_code and answer["items"] else DONE


def show_incident(client: TowerClient, args: argparse.Namespace) -> int:
    """Show one incident: its verdict, then the distinct stacks, the rarest first."""

    def text(incident: dict[str, Any]) -> str:
        now = time.time()
        verdict = client.incident_text(incident["id"]).rstrip()
        lines = [write_ack(incident["ack"], now)] if incident.get("ack") else []
        lines += [SHADOW_TEXT] if incident.get("shadow") else []
        lines += [write_silence(incident["silence"], now)] if incident.get("silence") else []
        history = write_history(incident.get("verdicts") or [], now)
        after = write_aftermath((incident.get("verdict") or {}).get("aftermath") or [], now)
        before = write_earlier(client.similar(incident["id"], SHOWN_SIMILAR), now)
        answered = [write_feedback(incident["feedback"], now)] if incident.get("feedback") else []
        outputs = [write_output(each, now) for each in incident.get("outputs") or []]
        parts = [verdict, *lines, *history, *after, *before, *answered, *outputs]
        return "\n\n".join([*parts, *map(write_stack, incident["stacks"])])

    _show(args, lambda: client.incident(args.incident), text, paint_verdict)
    return DONE


def _show(
    args: argparse.Namespace,
    ask: Callable[[], Any],
    text: Callable[[Any], str],
    paint: Callable[[str], str],
    write: Callable[[Any], str] = as_json,
    key: str = "id",
) -> Any:
    """Print an answer and return it; with --watch again whenever it changes.

    `key`: the field with the name of an item of a list.
    """
    form = args.form if "form" in args else "json" if args.json else "table"
    writers: dict[str, Callable[[Any], str]] = {
        "json": write,
        "yaml": as_yaml,
        "name": lambda answer: _name_items(answer, key),
    }
    shown, is_terminal, is_text = None, sys.stdout.isatty(), form not in writers
    while True:
        try:
            answer = ask()
            page = clean_lines(text(answer)) if is_text else writers[form](answer)
            # A time such as "3 min ago" changes by itself: only a terminal needs it again.
            state = answer if is_text and not is_terminal else page
        except ClientError:
            if not args.watch or shown is None:
                raise
            page = state = "the tower does not answer"
        if state != shown:
            if args.watch and is_text and is_terminal:
                print(CLEAR, end="")
            is_coloured = is_text and wants_colour(sys.stdout, os.environ)
            if page:
                print(paint(page) if is_coloured else page, flush=True)
            shown = state
        if not args.watch:
            return answer
        time.sleep(AGAIN_S)


def _name_items(answer: dict[str, Any], key: str) -> str:
    return "\n".join(clean(str(one[key])) for one in answer["items"])


def show_calibration(client: TowerClient, args: argparse.Namespace) -> int:
    """Print how often verdicts were right, as people answered."""
    answer = client.calibration()
    print(as_json(answer) if args.json else write_calibration(answer))
    return DONE
