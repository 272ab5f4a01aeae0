"""Notices a py-spy that gives no stacks at all: blocked, or older than the Python it is to read."""

from __future__ import annotations

import logging
import threading

from watchtower.wire.bounds import MAX_TEXT
from watchtower.wire.dumps import DumpFailure, FailureKind

log = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 4
"""One process may be at fault itself: it ended, or hangs in a place where nobody can read it. After
two rounds over two processes without one stack the tool is likelier."""

_NO_SIGN = (FailureKind.GONE, FailureKind.TORN)
"""The process ended, or was read, but ran on meanwhile: nothing is said of py-spy."""


class StackTrouble:
    """Counts failures in a row, says once when they begin to mean something and once when they are
    over. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_a_row = 0
        self._last: DumpFailure | None = None

    def note(self, failure: DumpFailure | None) -> None:
        """Take in how a dump ended; None: with stacks."""
        if failure is not None and failure.kind in _NO_SIGN:
            return
        with self._lock:
            before = self._sentence()
            self._in_a_row = 0 if failure is None else self._in_a_row + 1
            self._last = failure
            now = self._sentence()
        if now and not before:
            log.warning("limit: %s", now)
        elif before and not now:
            log.info("py-spy gives stacks again")

    def sentence(self) -> str:
        """Say what is wrong with py-spy here; empty when it works, or has not been asked enough."""
        with self._lock:
            return self._sentence()

    def _sentence(self) -> str:
        if self._last is None or self._in_a_row < FAILURES_IN_A_ROW:
            return ""
        kind = self._last.kind.value.replace("_", " ")
        said = (
            f"no Python stacks: py-spy failed {self._in_a_row} times in a row, last ({kind}): "
            f"{self._last.help_text}; try it by hand: `py-spy dump --pid PID`"
        )
        return said[:MAX_TEXT]
