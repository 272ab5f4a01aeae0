"""Makes untrusted text safe for one line of a terminal or a log.

All cleaning of text in tower, agent, commands and drills uses `printable`.
"""

from __future__ import annotations

ELLIPSIS = "…"


def printable(text: str, limit: int) -> str:
    """Return the first `limit` characters of a text, with spaces for unprintable characters.

    These are control and direction characters, line breaks and surrogates.
    """
    # The heartbeat client does the same, so that a name from both sources is the same name.
    return "".join(char if char.isprintable() else " " for char in text[:limit]).strip()


def fit_line(text: str, limit: int) -> str:
    """Return one line with single spaces, and with an ellipsis if it is longer than `limit`."""
    line = " ".join(printable(text, limit * 4).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + ELLIPSIS
