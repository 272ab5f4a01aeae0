"""The output of commands: tables and JSON that no text of a training process can break, and
colour on a terminal."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TextIO

WIDEST = 60
"""Characters of a name in a table; one long name must not push all others off the screen."""


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Return rows as columns. The last column is not cut."""
    cleaned = [[*map(_shorten, map(clean, row[:-1])), clean(row[-1])] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cleaned, strict=True)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in cleaned]
    return "\n".join(line.rstrip() for line in lines)


def as_json(answer: object) -> str:
    """Return JSON without control characters: json.dumps escapes only those of ASCII."""
    page = json.dumps(answer, ensure_ascii=False)
    return page if page.isprintable() else json.dumps(answer)


_OTHER_IN_YAML = frozenset(("null", "true", "false", "yes", "no", "on", "off", "y", "n"))


def as_yaml(answer: object, indent: str = "") -> str:
    """Return JSON values as YAML in blocks, with every text in quotes and no control characters."""
    if isinstance(answer, Mapping) and answer:
        parts = [(f"{_yaml_key(str(key))}:", value) for key, value in answer.items()]
    elif isinstance(answer, list) and answer:
        parts = [("-", each) for each in answer]
    else:
        return _yaml_text(answer) if isinstance(answer, str) else json.dumps(answer)
    lines = []
    for head, each in parts:
        text = as_yaml(each, f"{indent}  ")
        is_block = bool(each) and isinstance(each, Mapping | list) and head != "-"
        lines.append(f"{indent}{head}\n{text}" if is_block else f"{indent}{head} {text.lstrip()}")
    return "\n".join(lines)


def _yaml_key(key: str) -> str:
    is_plain = key.isidentifier() and key.isascii() and key.lower() not in _OTHER_IN_YAML
    return key if is_plain else _yaml_text(key)


def _yaml_text(text: str) -> str:
    page = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in page)


def clean(text: str) -> str:
    """Return text without control characters: names come from training processes."""
    return "".join(c if c.isprintable() else "?" for c in str(text))


def clean_lines(text: str) -> str:
    """Return text of several lines, each without control characters."""
    return "\n".join(map(clean, text.split("\n")))


def _shorten(text: str) -> str:
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"


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
