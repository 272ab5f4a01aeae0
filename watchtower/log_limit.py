"""Keeps a log readable and bounded: what can be said again and again is said seldom.

Every line is one of few sentences with names in it. Of each sentence some are let through at once
and then one now and then, with how many were left out. A record with `extra={"sharer": ...}` is
counted for that owner or job alone, so that one owner's jobs do not hide the lines of others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from watchtower.printable import printable

BURST = 30
"""Lines of one sentence at once: the ranks of a large node that are found together."""

REFILL_S = 10.0
"""After the burst one line in this time: 360 an hour and sentence at worst."""

MAX_LINE = 2000
"""Characters of one line; names in it are bounded by themselves."""

MAX_TRACEBACK_LINES = 100
"""Of one traceback, the last ones."""

MAX_ALLOWANCES = 4096
"""Sentences and owners that are counted. One that was used longest ago makes room."""


@dataclass(slots=True, kw_only=True)
class _Allowance:
    left: float
    at: float
    hidden: int = 0


class LogLimit(logging.Filter):
    """For a handler: lets a record through or counts it."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._allowances: dict[tuple[str, int, str], _Allowance] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether a record is written."""
        allowance = self._allowance_of(record)
        if allowance.left < 1:
            allowance.hidden += 1
            return False
        allowance.left -= 1
        more = f" (and {allowance.hidden} more like it)" if allowance.hidden else ""
        allowance.hidden = 0
        # One line whatever names are in it: a line break would forge the next one.
        record.msg, record.args = printable(record.getMessage(), MAX_LINE) + more, ()
        if record.exc_info:
            # What the handler writes below the line, instead of its own.
            record.exc_text = _indent(logging.Formatter().formatException(record.exc_info))
        return True

    def _allowance_of(self, record: logging.LogRecord) -> _Allowance:
        now = self._clock()
        # By place in the code and not by text: whoever chooses a text cannot choose that.
        key = (record.pathname, record.lineno, str(getattr(record, "sharer", "")))
        allowance = self._allowances.pop(key, None) or _Allowance(left=BURST, at=now)
        self._allowances[key] = allowance
        if len(self._allowances) > MAX_ALLOWANCES:
            self._allowances.pop(next(iter(self._allowances)))
        allowance.left = min(float(BURST), allowance.left + (now - allowance.at) / REFILL_S)
        allowance.at = now
        return allowance


def _indent(traceback: str) -> str:
    """Mark the lines of a traceback, so that none of them looks like a line of the log."""
    lines = traceback.split("\n")[-MAX_TRACEBACK_LINES:]
    return "\n".join(f"  | {printable(line, MAX_LINE)}" for line in lines)
