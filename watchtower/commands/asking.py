"""The commands that ask a tower, once or again every second, as text or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from watchtower.commands.client import ClientError, TowerClient
from watchtower.core.verdict_text import SHOWN_AFTERMATH

AGAIN_S = 1.0
"""Agents report once a second; asking more often shows nothing new."""

URGENT_FIRST = (
    "hung",
    "suspect",
    "slow",
    "monitoring_lost",
    "suspended",
    "recovered",
    "healthy",
    "ended",
)

IN_TROUBLE = ("hung", "suspect", "slow")

MAX_VERDICTS = 5
"""Shown at once; more jobs in trouble at a time have one reason, `watchtower jobs` lists them."""

MAX_NAMED = 20

WIDEST = 60
"""Characters of a name in a table; one long name must not push all others off the screen."""

CLEAR = "\x1b[H\x1b[2J"


def show_jobs(client: TowerClient, args: argparse.Namespace) -> int:
    """List the live jobs."""
    return _show(args, client.jobs, _jobs_text)


def show_verdict(client: TowerClient, args: argparse.Namespace) -> int:
    """Say who hung a job, where and why; without a name, of every job that is in trouble."""

    def ask() -> list[dict[str, Any]]:
        return [client.verdict(job) for job in [args.job] if job] or _in_trouble(client)

    def text(verdicts: list[dict[str, Any]]) -> str:
        return "\n\n".join(_verdict_text(client, verdict) for verdict in verdicts)

    return _show(args, ask, text, as_json=lambda verdicts: "\n".join(map(_json, verdicts)))


def _in_trouble(client: TowerClient) -> list[dict[str, Any]]:
    """Give the verdicts of jobs in trouble, the worst first, or of the only job there is."""
    jobs = sorted(client.jobs(), key=_urgency)
    names = [str(job["job"]) for job in jobs if job["status"] in IN_TROUBLE] or [
        str(job["job"]) for job in jobs
    ]
    if not names:
        raise ClientError("no agent reports a job; `watchtower why JOB` also finds past ones")
    if len(names) == len(jobs) > 1 and jobs[0]["status"] not in IN_TROUBLE:
        shown = ", ".join(map(clean, names[:MAX_NAMED]))
        raise ClientError(f"which job? none is hung, suspect or slow: {shown}")
    return [client.verdict(name) for name in names[:MAX_VERDICTS]]


def _verdict_text(client: TowerClient, verdict: dict[str, Any]) -> str:
    job = str(verdict["job"])
    lines = [client.verdict_text(job).rstrip()]
    if verdict.get("incident"):
        known = [one for one in client.incidents(job) if one["id"] == verdict["incident"]]
        lines += [f"  {say_ack(one['ack'])}" for one in known if one.get("ack")]
    lines += [f"  {_mute_text(mute)}" for mute in client.mutes() if mute["job"] == job]
    return "\n".join(lines)


def show_incidents(client: TowerClient, args: argparse.Namespace) -> int:
    """List incidents."""
    return _show(args, lambda: client.incidents(args.job, args.limit), _incidents_text)


def show_incident(client: TowerClient, args: argparse.Namespace) -> int:
    """Show one incident: its verdict, then the distinct stacks, the rarest first."""

    def text(incident: dict[str, Any]) -> str:
        verdict = client.incident_text(incident["id"]).rstrip()
        said = [say_ack(incident["ack"])] if incident.get("ack") else []
        history = _history_text(incident.get("verdicts") or [])
        after = _aftermath_text((incident.get("verdict") or {}).get("aftermath") or [])
        parts = [verdict, *said, *history, *after, *map(_stack_text, incident["stacks"])]
        return "\n\n".join(parts)

    return _show(args, lambda: client.incident(args.incident), text)


def export(client: TowerClient, args: argparse.Namespace) -> int:
    """Write down everything that an incident was concluded from."""
    bundle = client.export(args.incident)
    if args.output is None:
        print(bundle)
    else:
        args.output.write_text(bundle, "utf-8")
        print(f"{args.output}: {len(bundle) / 1000:.0f} KB; `watchtower replay` diagnoses it again")
    return 0


def _show(
    args: argparse.Namespace,
    ask: Callable[[], Any],
    text: Callable[[Any], str],
    as_json: Callable[[Any], str] | None = None,
) -> int:
    """Print an answer; with --watch again whenever it changes."""
    shown = None
    while True:
        try:
            answer = ask()
            page = (as_json or _json)(answer) if args.json else _clean_lines(text(answer))
        except ClientError:
            if not args.watch or shown is None:
                raise
            page = "the tower does not answer"
        if page != shown:
            if args.watch and not args.json and sys.stdout.isatty():
                print(CLEAR, end="")
            print(page, flush=True)
            shown = page
        if not args.watch:
            return 0
        time.sleep(AGAIN_S)


def _jobs_text(jobs: list[dict[str, Any]]) -> str:
    if not jobs:
        return "no agent reports a job"
    rows = [("JOB", "STATUS", "STEP", "RANKS", "GEN", "MUTED", "DETAIL")]
    for job in sorted(jobs, key=_urgency):
        step = "-" if job["step"] is None else str(job["step"])
        until = (job["muted_until"] or "-")[:16].replace("T", " ")
        cells = (job["job"], job["status"], step, job["world_size"], job["generation"], until)
        rows.append((*map(str, cells), job["detail"]))
    return _table(rows)


def _urgency(job: dict[str, Any]) -> int:
    status = job["status"]
    return URGENT_FIRST.index(status) if status in URGENT_FIRST else len(URGENT_FIRST)


def _incidents_text(incidents: list[dict[str, Any]]) -> str:
    if not incidents:
        return "no incidents"
    rows = [("INCIDENT", "OPENED", "JOB", "STATUS", "CAUSE", "ACK", "RANKS")]
    for one in incidents:
        opened = one["opened_at"][:19].replace("T", " ")
        cause, suspects = one["cause"] or "-", one["suspects"] or "-"
        ack = "-" if one["ack"] is None else one["ack"]["by"] or "yes"
        rows.append((one["id"], opened, one["job"], one["status"], cause, ack, suspects))
    return _table(rows)


def say_ack(ack: dict[str, Any]) -> str:
    """Say who acknowledged an incident, when, and what they noted."""
    by, note = ack["by"] and f" by {ack['by']}", ack["note"] and f": {ack['note']}"
    return clean(f"acknowledged {ack['at']}{by}{note}")


def _mute_text(mute: dict[str, Any]) -> str:
    reason = mute["reason"] and f": {mute['reason']}"
    return clean(f"pages nobody until {mute['until']}{reason}")


def _history_text(entries: list[dict[str, Any]]) -> list[str]:
    """List the verdicts of an incident, if there was more than one."""
    if len(entries) < 2:
        return []
    lines = ["verdicts:"]
    for entry in entries:
        suspects = f" of ranks {entry['suspects']}" if entry["suspects"] else ""
        lines.append(f"    {entry['at']} {entry['cause']}{suspects} ({entry['confidence']:.0%})")
    return ["\n".join(map(clean, lines))]


def _aftermath_text(entries: list[dict[str, Any]]) -> list[str]:
    """List what happened after the opening, if there is more than the verdict's text shows."""
    if len(entries) <= SHOWN_AFTERMATH:
        return []
    lines = [
        f"    {entry['at']} ranks {entry['ranks'] or '-'}: {entry['text']}" for entry in entries
    ]
    return ["\n".join(map(clean, ["afterwards:", *lines]))]


def _stack_text(stack: dict[str, Any]) -> str:
    lines = [f"ranks {stack['ranks']}, innermost frame first:"]
    for frame in stack["frames"]:
        lines.append(f"    {frame['function']} ({frame['file']}:{frame['line']})")
    return "\n".join(map(clean, lines))


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    cleaned = [[*map(_shorten, map(clean, row[:-1])), clean(row[-1])] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cleaned, strict=True)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in cleaned]
    return "\n".join(line.rstrip() for line in lines)


def _shorten(text: str) -> str:
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"


def _json(answer: object) -> str:
    """Write JSON that a terminal takes for text: json.dumps escapes only ASCII's own controls."""
    page = json.dumps(answer, ensure_ascii=False)
    return page if page.isprintable() else json.dumps(answer)


def _clean_lines(text: str) -> str:
    return "\n".join(map(clean, text.split("\n")))


def clean(text: str) -> str:
    """Names come from training processes: no control character may reach a terminal."""
    return "".join(c if c.isprintable() else "?" for c in str(text))
