"""Options that several commands have, and how their values are read."""

from __future__ import annotations

import argparse
import re
from datetime import datetime, timedelta, timezone
from pathlib import Path

from watchtower.service.command_line import Parser, name_or_id
from watchtower.wire.bounds import MAX_SILENCE_S
from watchtower.wire.verdict import Cause, Domain, Status
from watchtower.writing.times import DAY, read_time

INCIDENT_HELP = "id of the incident, or the beginning of it if no other id begins so"


_DURATION = re.compile(r"(?:\d+[smhd])+")
_PART = re.compile(r"(?<!\d)(\d+)([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

MAX_DURATION = 32
"""Characters of a duration or of a time."""

FILTERS = ("job", "status", "cause", "node", "domain", "user", "since")
"""Options of `watchtower incidents`, and parameters of /api/v1/incidents."""


def read_duration(text: str) -> float | None:
    """Read "90s", "30m", "2h", "1h30m" or "1d" as seconds; None if `text` is not a duration."""
    if len(text) > MAX_DURATION or not _DURATION.fullmatch(text):
        return None
    return float(sum(int(number) * _UNITS[unit] for number, unit in _PART.findall(text)))


def moment(text: str) -> timedelta | datetime:
    """Read a duration as it, and "2026-11-22" or "2026-11-22T02:16Z" as a time; for argparse."""
    seconds = read_duration(text)
    try:
        if seconds is not None:
            return timedelta(seconds=seconds)
        if len(text) > MAX_DURATION:
            raise ValueError
        return read_time(text)
    except (ValueError, OverflowError):
        shown = text[:MAX_DURATION]
        raise argparse.ArgumentTypeError(
            f"invalid time {shown!r}: use 2h, 7d, 2026-11-22 or 2026-11-22T02:16Z"
        ) from None


FORMS = ("table", "wide", "json", "yaml", "name")
"""How a list may be printed."""


def add_form(parser: Parser, *left_out: str) -> None:
    """Add the options for the form of a list. `left_out`: forms that this list does not have."""
    forms = [form for form in FORMS if form not in left_out]
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "-o",
        "--output",
        dest="form",
        choices=forms,
        default="table",
        metavar="FORM",
        help=f"{', '.join(forms)} (default table)",
    )
    form.add_argument(
        "--json",
        dest="form",
        action="store_const",
        const="json",
        help="print the answer of the API, as JSON",
    )


def add_status(parser: Parser, what: str) -> None:
    """Add the option that chooses by status. `what`: "jobs" or "incidents"."""
    statuses = [status.value for status in Status]
    text = f"only {what} with this status: {', '.join(statuses)}"
    parser.add_argument("--status", choices=statuses, metavar="STATUS", help=text)


def add_filters(parser: Parser) -> None:
    """Add the options that choose incidents. All of them must fit."""
    causes, domains = ([each.value for each in kind] for kind in (Cause, Domain))
    parser.add_argument("--job", type=name_or_id, help="only incidents of this job")
    add_status(parser, "incidents")
    parser.add_argument(
        "--cause", choices=causes, metavar="CAUSE", help="only this cause, as docs/verdicts.md"
    )
    parser.add_argument(
        "--node", type=name_or_id, help="only incidents whose verdict names a rank on this node"
    )
    parser.add_argument(
        "--domain",
        choices=domains,
        metavar="DOMAIN",
        help=f"only incidents about which to call: {', '.join(domains)}",
    )
    parser.add_argument("--user", type=name_or_id, help="only incidents of jobs of this user")
    parser.add_argument(
        "--since",
        type=moment,
        metavar="TIME",
        help="only incidents that opened then or later: 2h or 7d ago, 2026-11-22, "
        "2026-11-22T02:16Z",
    )


def find_filters(args: argparse.Namespace, now: float) -> dict[str, str]:
    """Return the parameters of the API for the options. `now`: UNIX seconds."""
    found = {name: str(getattr(args, name) or "") for name in FILTERS if name != "since"}
    since = args.since
    if isinstance(since, timedelta):
        since = datetime.fromtimestamp(max(0.0, now - since.total_seconds()), timezone.utc)
    found["since"] = since.isoformat() if since is not None else ""
    return found | {"drills": "true" if args.drills else ""}


def describe(args: argparse.Namespace) -> str:
    """Return " with status hung, node gpu-042" for the options that were given; "" for none."""
    given = [(name, getattr(args, name)) for name in FILTERS if getattr(args, name) is not None]
    texts = [f"{name} {value}" for name, value in given]
    return f" with {', '.join(texts)}" if texts else ""


def duration(text: str) -> float:
    """Read "90s", "30m", "2h", "1h30m" or "1d" as seconds; for argparse."""
    seconds = read_duration(text)
    if seconds is None:
        shown = text[:MAX_DURATION]
        raise argparse.ArgumentTypeError(f"invalid duration {shown!r}: use 30m, 2h, 1h30m or 1d")
    if not 1 <= seconds <= MAX_SILENCE_S:
        most = f"{MAX_SILENCE_S / DAY:g}d"
        raise argparse.ArgumentTypeError(f"invalid duration {text!r}: must be 1s to {most}")
    return seconds


def add_diagnose(parser: Parser) -> None:
    """Add the options of `watchtower diagnose`."""
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="file of `watchtower-agent snapshot`, log of ranks, or a folder of such files; - for "
        "snapshots on standard input",
    )
    parser.add_argument("--job", type=name_or_id, help="only this job")
    parser.add_argument(
        "--within",
        type=duration,
        default="15m",
        metavar="DURATION",
        help="longest time between the snapshots of one job (default %(default)s)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    form.add_argument("--markdown", action="store_true", help="print them to paste into an issue")
    form.add_argument("--html", action="store_true", help="print them as a page that stands alone")
    parser.add_argument(
        "--redact",
        action="store_true",
        help="replace names of jobs, nodes, users, paths, addresses and programs",
    )
    parser.add_argument(
        "--exit-code", action="store_true", help="exit with 1 if a job is hung or suspect"
    )
    parser.set_defaults(run=_diagnose)


def add_now(once: argparse._ActionsContainer) -> None:
    """Add the option of `watchtower why` that dumps the job first."""
    once.add_argument(
        "--now",
        action="store_true",
        help="dump the job now and diagnose it, also if no rank is suspect; needs JOB",
    )


def add_stacks(parser: Parser) -> None:
    """Add the options of `watchtower stacks`, except those about the tower."""
    parser.add_argument(
        "job", type=name_or_id, help="name of the job, or its name or id in the scheduler"
    )
    parser.add_argument("--rank", type=int, help="only the stacks of this rank")
    parser.add_argument("--all-threads", action="store_true", help="not only the main threads")
    order = parser.add_mutually_exclusive_group()
    order.add_argument(
        "--innermost",
        dest="outermost",
        action="store_false",
        help="one list of frames for each stack, innermost first (default)",
    )
    order.add_argument(
        "--outermost",
        action="store_true",
        help="one tree for all ranks, outermost frame first",
    )
    parser.set_defaults(outermost=False)


EXAMINE_TIMEOUT_S = 60.0
"""The tower waits up to 15 s for dumps, and other examinations may be first."""


def _diagnose(args: argparse.Namespace) -> int:
    from watchtower.commands.diagnosing import show_diagnosis  # noqa: PLC0415 - only if needed

    return show_diagnosis(args)
