"""Keeps a log readable and bounded: repeated log lines are rate-limited.

Every log call in the code has its own limit: a burst of lines at once, then one line per interval,
with the number of lines that were left out. A record with `extra={"sharer": ...}` counts only for
that owner or job, so that the jobs of one owner do not hide lines about others. All sharers
together have a limit, too, because names of owners and jobs may be invented.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from time import monotonic

from watchtower.service.token_bucket import TokenBucket, TokenBuckets
from watchtower.writing.printable import printable

BURST = 30
"""Lines of one log call at once: enough for the ranks of a large node that are found together."""

REFILL_S = 10.0
"""Seconds per line of one log call after the burst: at most 360 lines an hour."""

CALL_BURST = 300
CALL_PER_S = 1.0
"""Lines of one log call for all sharers together, at once and then per second: the bursts of ten
owners, and at most 3600 lines an hour."""

MAX_LINE = 2000
"""Characters of one line. The names in it have their own limits."""

MAX_TRACEBACK_LINES = 100
"""Lines of one traceback, counted from its end."""

MAX_SHARERS = 4096
"""Pairs of log call and sharer that are counted separately."""

LogCall = tuple[str, int]
"""File and line of a log call. Unlike the text, untrusted input cannot change it."""


class LogLimit(logging.Filter):
    """A filter for a handler: it passes a record, or drops and counts it."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._sharers = TokenBuckets[tuple[LogCall, str]](BURST, 1 / REFILL_S, MAX_SHARERS)
        self._all_sharers: dict[LogCall, TokenBucket] = {}
        self._dropped: Counter[object] = Counter()
        """Dropped records by log call and sharer; by log call if the common limit dropped them."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written."""
        now, call = self._clock(), (record.pathname, record.lineno)
        key = call, str(getattr(record, "sharer", ""))
        own = self._sharers.use(key)
        common = self._all_sharers.setdefault(call, TokenBucket(CALL_BURST, CALL_PER_S))
        if own.left(now) < 1:
            self._dropped[key if len(self._dropped) < MAX_SHARERS else call] += 1
            return False
        if not common.take(now):
            self._dropped[call] += 1
            return False
        own.spend(now, 1)
        dropped = self._dropped.pop(key, 0) + self._dropped.pop(call, 0)
        more = f" (and {dropped} more like it)" if dropped else ""
        # Names in it must not break the line: the rest could imitate another line.
        record.msg, record.args = printable(record.getMessage(), MAX_LINE) + more, ()
        if record.exc_info:
            # The handler writes this text below the line instead of its own traceback.
            record.exc_text = _indent(logging.Formatter().formatException(record.exc_info))
        return True


def _indent(traceback: str) -> str:
    """Return a traceback with a mark on each line, so that none can imitate a log line."""
    lines = traceback.split("\n")[-MAX_TRACEBACK_LINES:]
    return "\n".join(f"  | {printable(line, MAX_LINE)}" for line in lines)
