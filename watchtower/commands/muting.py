"""The commands that tell a tower what need not page: mute, unmute, ack."""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

from watchtower.commands.asking import MAX_NAMED, clean, say_ack
from watchtower.commands.client import TowerClient

_PARTS = re.compile(r"(?:\d+[smhd])+")
_PART = re.compile(r"(\d+)([smhd]?)")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def duration(text: str) -> float:
    """Read "90s", "30m", "2h", "1h30m" or "1d" as seconds; for argparse."""
    if not _PARTS.fullmatch(text):
        raise argparse.ArgumentTypeError(f"`{text}` is no duration such as 30m, 2h, 1h30m or 1d")
    return float(sum(int(n) * _UNITS[u] for n, u in _PART.findall(text)))


def mute(client: TowerClient, args: argparse.Namespace) -> int:
    """Mute a job for a while."""
    answer = client.mute(args.job, args.for_s, args.reason)
    names = [str(job["job"]) for job in client.jobs()]
    text = f"{args.job} pages nobody until {answer['until']}"
    if args.job not in names:
        shown = ", ".join(names[:MAX_NAMED])
        text += f"; no agent reports it at present{shown and f', those reported are {shown}'}"
    return _say(args, answer, text)


def unmute(client: TowerClient, args: argparse.Namespace) -> int:
    """Let a job page again."""
    return _say(args, client.unmute(args.job), f"{args.job} is not muted any more")


def ack(client: TowerClient, args: argparse.Namespace) -> int:
    """Acknowledge an incident; who did so before is told, for it is not kept."""
    before = client.incident(args.incident).get("ack")
    answer = client.ack(args.incident, args.by, args.note)
    by = f" by {answer['by']}" if answer["by"] else ""
    earlier = f"; before: {say_ack(before)}" if before else ""
    return _say(args, answer, f"{args.incident} is acknowledged{by}{earlier}")


def _say(args: argparse.Namespace, answer: dict[str, Any], text: str) -> int:
    print(json.dumps(answer, ensure_ascii=False) if args.json else clean(text))
    return 0
