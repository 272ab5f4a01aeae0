"""The headline of an incident: the sentence of its verdict without what the page shows beside it.

A box shows the node, the process and the line of code of the suspect. The page shows since when the
job hangs, and the ages in the sentence are those of the moment of the verdict. Pure.
"""

from __future__ import annotations

import re

from watchtower.core.text import capitalise
from watchtower.wire.verdict import Verdict

_ABOUT = re.compile(r"\A(Ranks? [\d,-]+) \([^()]{1,160}\)")
"""The node and process after the first rank."""

_AGES = re.compile(
    r" It has made no step for \d+ (?:s|min|h)\.(?= |\Z)"
    r"| for \d+ (?:s|min|h)(?=[.,])"
    r"| \(\d+ (?:s|min|h) ago\)"
    r"|,? \d+ (?:s|min|h) ago(?=[ .:)])"
)
"""Ages in our own sentences."""


def drop_ages(sentence: str) -> str:
    """Return one of our own sentences without its ages, for a place that shows since when."""
    return _AGES.sub("", sentence)


def write_headline(verdict: Verdict) -> str:
    """Return the sentence."""
    text = capitalise(verdict.summary)
    if not verdict.suspects:
        return drop_ages(text)
    text = _ABOUT.sub(r"\1", text, count=1)
    where = verdict.suspects[0].where
    if where:
        found = next((part for part in (f", at {where}", f" at {where}") if part in text), "")
        text = text.replace(found, "", 1)
    return drop_ages(text)
