"""The output of commands: tables and JSON that no text of a training process can break."""

from __future__ import annotations

import json
from collections.abc import Sequence

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


def clean(text: str) -> str:
    """Return text without control characters: names come from training processes."""
    return "".join(c if c.isprintable() else "?" for c in str(text))


def clean_lines(text: str) -> str:
    """Return text of several lines, each without control characters."""
    return "\n".join(map(clean, text.split("\n")))


def _shorten(text: str) -> str:
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"
