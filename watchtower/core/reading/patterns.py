"""Patterns of the facts: each is matched against a bounded part of a text that a process chose.

A hostile process may give a frame any name. The text is cut here and nowhere else. Each pattern
takes time in proportion to the length of the text: tests/core/test_patterns.py times every pattern.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_END = 128
"""Characters used of each end of a text. A path is known by its end, a message by its beginning;
names and paths of real programs are shorter than one of the two."""


@dataclass(frozen=True, slots=True)
class TextPattern:
    """A regular expression for a name, a path or a message. Make it with `whole` or `part`."""

    regex: re.Pattern[str]
    is_whole: bool
    """The whole text must match, not a part of it."""

    def matches(self, text: str) -> bool:
        """Return whether the text matches; of a long one, only both ends count."""
        match = self.regex.fullmatch if self.is_whole else self.regex.search
        return match(cut(text)) is not None


def whole(pattern: str, flags: int = 0) -> TextPattern:
    """Return a pattern that the whole text must match."""
    return TextPattern(_compile(pattern, flags), True)


def part(pattern: str, flags: int = 0) -> TextPattern:
    """Return a pattern that some part of the text must match."""
    return TextPattern(_compile(pattern, flags), False)


def cut(text: str) -> str:
    """Return both ends of a long text, and a short one as it is."""
    return text if len(text) <= 2 * MAX_END else text[:MAX_END] + text[-MAX_END:]


def _compile(pattern: str, flags: int) -> re.Pattern[str]:
    # DOTALL: without it, a line feed in a name makes `.*` fail, and be tried again from the next
    # character on.
    return re.compile(pattern, flags | re.DOTALL)
