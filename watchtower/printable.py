"""Makes text that other programs chose fit for one line of a terminal or a log.

Every text cleaner of tower, agent, commands and drills is built on `printable`.
"""

from __future__ import annotations

ELLIPSIS = "…"


def printable(text: str, limit: int) -> str:
    """Cut a text, and replace what would play tricks on a terminal by spaces.

    These are control and direction characters, line breaks, and halves of characters.
    """
    # As the heartbeat page does it: the same name from both must stay the same name.
    return "".join(char if char.isprintable() else " " for char in text[:limit]).strip()


def fit_line(text: str, limit: int) -> str:
    """Make one line for people: single spaces, and an ellipsis if it is longer than `limit`."""
    line = " ".join(printable(text, limit * 4).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + ELLIPSIS
