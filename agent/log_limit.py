"""Keeps the log readable and bounded: what can be said again and again is said seldom.

Every line is one of few sentences with names in it. Of each sentence some are let through at once
and then one now and then, with how many were left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from agent.procfs import printable

BURST = 30
"""Lines of one sentence at once: the ranks of a large node that are found together."""

REFILL_S = 10.0
"""After the burst one line in this time: 360 an hour and sentence at worst."""


MAX_LINE = 2000
"""Characters of one line; names in it are bounded by themselves."""


@dataclass(slots=True, kw_only=True)
class _Purse:
    left: float
    at: float
    hidden: int = 0


class LogLimit(logging.Filter):
    """For a handler: lets a record through or counts it."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._purses: dict[tuple[str, int], _Purse] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether a record is written."""
        now = self._clock()
        # By place in the code and not by text: the number of purses is the number of log calls.
        key = (record.pathname, record.lineno)
        purse = self._purses.setdefault(key, _Purse(left=BURST, at=now))
        purse.left = min(float(BURST), purse.left + (now - purse.at) / REFILL_S)
        purse.at = now
        if purse.left < 1:
            purse.hidden += 1
            return False
        purse.left -= 1
        more = f" (and {purse.hidden} more like it)" if purse.hidden else ""
        purse.hidden = 0
        # One line whatever names are in it: a line break would forge the next one.
        record.msg, record.args = printable(record.getMessage(), MAX_LINE) + more, ()
        return True
