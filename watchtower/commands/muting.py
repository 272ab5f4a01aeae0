"""The commands that change which alerts fire: mute, unmute, ack."""

from __future__ import annotations

import argparse
import getpass
import re
import time
from typing import Any

from watchtower.arguments import suggest
from watchtower.commands.asking import MAX_NAMED, say_ack
from watchtower.commands.client import TowerClient
from watchtower.commands.exit_codes import DONE
from watchtower.commands.printing import as_json, clean
from watchtower.core.times import say_time
from watchtower.wire.bounds import MAX_SILENCE_S

_PARTS = re.compile(r"(?:\d+[smhd])+")
_PART = re.compile(r"(\d+)([smhd]?)")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

MAX_DURATION = 32
"""Characters of a duration."""


def duration(text: str) -> float:
    """Read "90s", "30m", "2h", "1h30m" or "1d" as seconds; for argparse."""
    if len(text) > MAX_DURATION or not _PARTS.fullmatch(text):
        shown = text[:MAX_DURATION]
        raise argparse.ArgumentTypeError(f"invalid duration {shown!r}: use 30m, 2h, 1h30m or 1d")
    seconds = float(sum(int(n) * _UNITS[u] for n, u in _PART.findall(text)))
    if not 1 <= seconds <= MAX_SILENCE_S:
        most = f"{MAX_SILENCE_S / _UNITS['d']:g}d"
        raise argparse.ArgumentTypeError(f"invalid duration {text!r}: must be 1s to {most}")
    return seconds


def user_name() -> str:
    """Return the name of the user who runs this; empty if the system does not know it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, in a container
        return ""


def mute(client: TowerClient, args: argparse.Namespace) -> int:
    """Silence the alerts of a job for a while."""
    answer = client.mute(args.job, args.for_s, args.reason)
    names = [str(job["job"]) for job in client.jobs()]
    until = say_time(str(answer["until"]), time.time())
    text = f"alerts of job {args.job} are silenced until {until}"
    if args.job not in names:
        shown = ", ".join(names[:MAX_NAMED])
        text += f". No agent reports this job now{shown and f'; agents report {shown}'}"
        text += f".{hint}" if (hint := suggest(args.job, names)) else ""
    return _say(args, answer, text)


def unmute(client: TowerClient, args: argparse.Namespace) -> int:
    """End the silence of a job."""
    text = f"alerts of job {args.job} are not silenced any more"
    return _say(args, client.unmute(args.job), text)


def ack(client: TowerClient, args: argparse.Namespace) -> int:
    """Acknowledge an incident. Prints the acknowledgement that this one replaces."""
    incident = client.incident(args.incident)
    answer = client.ack(incident["id"], args.by, args.note)
    by, before = f" by {answer['by']}" if answer["by"] else "", incident.get("ack")
    earlier = f"; before: {say_ack(before, time.time())}" if before else ""
    return _say(args, answer, f"{incident['id']} is acknowledged{by}{earlier}")


def _say(args: argparse.Namespace, answer: dict[str, Any], text: str) -> int:
    print(as_json(answer) if args.json else clean(text))
    return DONE
