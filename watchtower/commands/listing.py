"""Options that choose which jobs and incidents are listed."""

from __future__ import annotations

import argparse
import re
from datetime import datetime, timedelta, timezone

from watchtower.service.command_line import Parser, name_or_id
from watchtower.wire.verdict import Cause, Domain, Status
from watchtower.writing.times import read_time

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
