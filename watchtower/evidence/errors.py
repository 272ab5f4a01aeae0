"""What the type and the text of an exception show, by the table `facts/error_texts.toml`.

A message has several lines: those that carry its meaning, joined by `LINE_END` (see
`watchtower_heartbeat.own_page`). They come from a process, so all here is bounded and linear.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from watchtower.evidence.facts import read_facts
from watchtower.evidence.frames import last_component
from watchtower.evidence.patterns import TextPattern, part, whole
from watchtower.wire.report import LINE_END
from watchtower.wire.verdict import Domain

MESSAGE_END = 256
"""Characters of each end of a message that are matched: together the room in a heartbeat file."""

MAX_WORDS = 256
"""Words of a message that are compared with those of another rank."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an exception shows."""

    is_consequence: bool = False
    """It is raised because another rank is lost or late."""
    has_order: bool = False
    """A rank may also raise it because another one has ended."""
    domain: Domain | None = None
    """Whom to call, if the text shows it."""
    is_order: bool = False
    """It is raised for a signal or an order from outside."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the table."""

    type: TextPattern
    text: TextPattern
    meaning: Meaning

    def matches(self, name: str, text: str) -> bool:
        """Return whether the row is about this exception."""
        return self.type.matches(name) and self.text.matches(text)


def _read_entry(entry: dict[str, Any], *, is_order: bool) -> Entry:
    domain = entry.get("domain")
    return Entry(
        type=whole(entry.get("type", ".*")),
        text=part(entry.get("text", ""), re.IGNORECASE, MESSAGE_END),
        meaning=Meaning(
            is_consequence=entry.get("consequence", False),
            has_order=entry.get("order", False),
            domain=Domain(domain) if domain else None,
            is_order=is_order,
        ),
    )


_TABLE = read_facts("error_texts")
_ENTRIES = tuple(
    _read_entry(entry, is_order=name == "interrupt")
    for name in ("interrupt", "error")
    for entry in _TABLE[name]
)
OWN = Meaning()
"""An exception that no row is about is the rank's own."""


@lru_cache(maxsize=65536)
def read_error(exception_type: str, text: str) -> Meaning:
    """Return what an exception shows, by its class name without module, and by its message."""
    name = last_component(exception_type)
    found = (entry.meaning for entry in _ENTRIES if entry.matches(name, text))
    return next(found, OWN)


@lru_cache(maxsize=65536)
def shape_of(exception_type: str, text: str) -> str:
    """Return what exceptions of one fault have in common on several ranks.

    Words with digits and paths are left out: addresses, pids, numbers of records, names of files.
    """
    words = text[: 2 * MESSAGE_END].split()[:MAX_WORDS]
    kept = (word for word in words if not any(char.isdigit() or char == "/" for char in word))
    return " ".join((exception_type, *kept))


def split_lines(text: str) -> list[str]:
    """Return the lines of a message that are not blank."""
    return [line for line in map(str.strip, text.split(LINE_END)) if line]
