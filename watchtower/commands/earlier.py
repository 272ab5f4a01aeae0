"""Earlier incidents and a person's answer, which `watchtower incident` adds."""

from __future__ import annotations

from typing import Any

from watchtower.commands.printing import clean
from watchtower.writing.times import format_time

SHOWN_SIMILAR = 3
"""Earlier incidents of one incident. The API has more."""


def earlier_text(answer: dict[str, Any], now: float) -> list[str]:
    """List earlier incidents with the same node, line or cause, if there are any."""
    lines = [f"    {one['text']}" for one in answer["node_counts"]]
    for one in answer["items"]:
        opened = format_time(str(one["opened_at"]), now)
        lines.append(f"    {one['id']}, {opened}, job {one['job']}: {one['why']}")
    return ["\n".join(map(clean, ["before:", *lines]))] if lines else []


def write_feedback(given: dict[str, Any], now: float) -> str:
    """Return what a person answered about the verdict, and when."""
    by, note = given["by"] and f" by {given['by']}", given["note"] and f": {given['note']}"
    true = [f"rank {given['rank']}"] if given["rank"] is not None else []
    true += [str(given["cause"])] if given["cause"] is not None else []
    text = "right" if given["right"] else "wrong"
    correct = f", correct is {', '.join(true)}" if true else ""
    return clean(f"judged {text} {format_time(given['at'], now)}{by}{correct}{note}")
