"""Keeps a log readable and bounded: what can be said again and again is said seldom.

Every line is one of few sentences with names in it. Of each sentence some are let through at once
and then one now and then, with how many were left out. A record with `extra={"sharer": ...}` is
counted for that owner or job alone, so that one owner's jobs do not hide the lines of others. All
of them together have an allowance, too: names of owners and jobs may be invented.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from time import monotonic

from watchtower.printable import printable
from watchtower.token_bucket import TokenBucket, TokenBuckets

BURST = 30
"""Lines of one sentence at once: the ranks of a large node that are found together."""

REFILL_S = 10.0
"""After the burst one line in this time: 360 an hour and sentence at worst."""

SENTENCE_BURST = 300
SENTENCE_PER_S = 1.0
"""Lines of one sentence for all sharers together, at once and after that: those of ten owners, and
3600 an hour at worst."""

MAX_LINE = 2000
"""Characters of one line; names in it are bounded by themselves."""

MAX_TRACEBACK_LINES = 100
"""Of one traceback, the last ones."""

MAX_SHARERS = 4096
"""Sentences and sharers that are counted apart."""

Sentence = tuple[str, int]
"""A place in the code, and not a text: whoever chooses a text cannot choose that."""


class LogLimit(logging.Filter):
    """For a handler: lets a record through or counts it."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._sharers = TokenBuckets[tuple[Sentence, str]](BURST, 1 / REFILL_S, MAX_SHARERS)
        self._sentences: dict[Sentence, TokenBucket] = {}
        self._hidden: Counter[object] = Counter()
        """By sharer and sentence; by sentence alone what all sharers together were refused."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Say whether a record is written."""
        now, sentence = self._clock(), (record.pathname, record.lineno)
        key = sentence, str(getattr(record, "sharer", ""))
        own = self._sharers.use(key)
        all_sharers = self._sentences.setdefault(
            sentence, TokenBucket(SENTENCE_BURST, SENTENCE_PER_S)
        )
        if own.left(now) < 1:
            self._hidden[key if len(self._hidden) < MAX_SHARERS else sentence] += 1
            return False
        if not all_sharers.take(now):
            self._hidden[sentence] += 1
            return False
        own.spend(now, 1)
        hidden = self._hidden.pop(key, 0) + self._hidden.pop(sentence, 0)
        more = f" (and {hidden} more like it)" if hidden else ""
        # One line whatever names are in it: a line break would forge the next one.
        record.msg, record.args = printable(record.getMessage(), MAX_LINE) + more, ()
        if record.exc_info:
            # What the handler writes below the line, instead of its own.
            record.exc_text = _indent(logging.Formatter().formatException(record.exc_info))
        return True


def _indent(traceback: str) -> str:
    """Mark the lines of a traceback, so that none of them looks like a line of the log."""
    lines = traceback.split("\n")[-MAX_TRACEBACK_LINES:]
    return "\n".join(f"  | {printable(line, MAX_LINE)}" for line in lines)
