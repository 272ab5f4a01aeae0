"""Colour on a terminal: red for a hung job and its suspects, yellow for what may become one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TextIO

RED, YELLOW, GREEN, GREY, BOLD = "31", "33", "32", "90", "1"

OF_STATUS = {
    "hung": RED,
    "suspect": YELLOW,
    "slow": YELLOW,
    "monitoring_lost": YELLOW,
    "suspended": GREY,
    "ended": GREY,
    "recovered": GREEN,
    "healthy": GREEN,
}

_HEADLINE = re.compile(r"^.{1,160}?: (" + "|".join(OF_STATUS) + r")\b")
_SUSPECT = "  suspect: "


def wants_colour(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Return whether to colour what is written to a stream: only a terminal, never with NO_COLOR.

    https://no-color.org: the variable counts if it is set and not empty.
    """
    if environment.get("NO_COLOR") or environment.get("TERM") == "dumb":
        return False
    return stream.isatty()


def paint(text: str, colour: str) -> str:
    """Return text in a colour."""
    return f"\x1b[{colour}m{text}\x1b[0m"


def paint_table(page: str) -> str:
    """Colour the statuses of a table that has a column STATUS. `page` has no control characters."""
    header, *rows = page.split("\n")
    column = header.find("STATUS")
    if column < 0:
        return page
    painted = [paint(header, BOLD)]
    for row in rows:
        word = row[column:].partition(" ")[0]
        colour = OF_STATUS.get(word)
        painted.append(
            row[:column] + paint(word, colour) + row[column + len(word) :] if colour else row
        )
    return "\n".join(painted)


def paint_verdict(page: str) -> str:
    """Colour the first line of each verdict by its status, and the suspects."""
    lines, is_first = [], True
    for line in page.split("\n"):
        found = _HEADLINE.match(line) if is_first else None
        if found:
            lines.append(paint(line, f"{BOLD};{OF_STATUS[found[1]]}"))
        elif line.startswith(_SUSPECT):
            lines.append(paint(line, RED))
        else:
            lines.append(line)
        is_first = not line
    return "\n".join(lines)
