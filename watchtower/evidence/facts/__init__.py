"""Reviewed facts about other software, as data files, and their patterns. Read once, at import.

Each entry contains the reason for it. A new fact needs a new entry, but no code.

Each pattern is matched against a bounded part of a text from a process. A hostile process may
choose any name for a frame. Texts are cut only here. The time of each pattern is proportional to
the length of the text: tests/evidence/test_patterns.py measures every pattern.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from watchtower.service.toml_tables import read_table

MAX_END = 128
"""Number of characters used of each end of a text. The end identifies a path, the beginning a
message. Names and paths of real programs are shorter than this."""


@dataclass(frozen=True, slots=True)
class TextPattern:
    """A regular expression for a name, a path or a message. Make it with `whole` or `part`."""

    regex: re.Pattern[str]
    is_whole: bool
    """The whole text must match, not a part of it."""
    end: int = MAX_END
    """Characters used of each end of a text."""

    def matches(self, text: str) -> bool:
        """Return whether the text matches. Only both ends of a long text are used."""
        match = self.regex.fullmatch if self.is_whole else self.regex.search
        return match(cut(text, self.end)) is not None


def whole(pattern: str, flags: int = 0) -> TextPattern:
    """Return a pattern that the whole text must match."""
    return TextPattern(_compile(pattern, flags), True)


def part(pattern: str, flags: int = 0, end: int = MAX_END) -> TextPattern:
    """Return a pattern that must match any part of the text, of which both ends are used."""
    return TextPattern(_compile(pattern, flags), False, end)


def cut(text: str, end: int = MAX_END) -> str:
    """Return both ends of a long text, and a short one as it is."""
    return text if len(text) <= 2 * end else text[:end] + text[-end:]


def _compile(pattern: str, flags: int) -> re.Pattern[str]:
    # DOTALL, because otherwise `.*` fails at a line feed in a name, and is tried again from every
    # further character.
    return re.compile(pattern, flags | re.DOTALL)


def read_facts(name: str) -> dict[str, Any]:
    """Return the table in the file `name`.toml beside this module."""
    return read_table(__name__, name)
