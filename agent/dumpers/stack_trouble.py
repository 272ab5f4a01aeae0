"""Detects that py-spy does not work on this node: it is blocked, or too old for this Python.

A process can make py-spy fail: it can stop py-spy, lock its own memory, or forge its program.
Therefore failures are counted by owner, and an owner's processes are not evidence about the node.
The agent dumps a process of its own instead. Only if that fails too, py-spy does not work on this
node.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable

from watchtower.wire.bounds import MAX_TEXT
from watchtower.wire.dumps import DumpFailure, FailureKind

log = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 4
"""Failures in a row of one owner: two rounds over two processes without a stack. Then py-spy is
checked.
"""

CHECK_EVERY_S = 60.0
"""Seconds between two checks on a process of the agent while failures continue. One check takes 6 s
if py-spy hangs.
"""

MAX_OWNERS = 1024
"""Owners whose failures are counted; the oldest are dropped."""

_NO_SIGN = (FailureKind.GONE, FailureKind.TORN)
"""The process ended, or was read but continued to run: this shows nothing about py-spy."""


def start_thread(step: Callable[[], None]) -> None:
    """Run a step in a thread of its own."""
    threading.Thread(target=step, name="check", daemon=True).start()


class StackTrouble:
    """Counts the failures in a row of each owner, and logs when they begin and end. Thread-safe."""

    def __init__(
        self,
        dump_own: Callable[[], DumpFailure | None],
        start: Callable[[Callable[[], None]], None] = start_thread,
    ) -> None:
        """`dump_own` dumps a process of the agent and returns why that failed.

        `start` runs this check in parallel to the dumps, because it may take long.
        """
        self._dump_own, self._start = dump_own, start
        self._lock = threading.Lock()
        self._in_a_row: OrderedDict[str, int] = OrderedDict()
        self._checked_at = float("-inf")
        self._on_node: DumpFailure | None = None

    def note(self, owner: str, failure: DumpFailure | None, now: float) -> None:
        """Record how the dump of a process of this owner ended at `now`; None: it has stacks."""
        if failure is None:
            self._note_success(owner)
        elif failure.kind not in _NO_SIGN:
            self._note_failure(owner, failure, now)

    def sentence(self) -> str:
        """Return why py-spy does not work on this node; empty if it works or was not checked."""
        failure = self._on_node
        if failure is None:
            return ""
        text = (
            f"no Python stacks: py-spy fails on a process of the agent too ({_kind(failure)}): "
            f"{failure.help_text}; try it by hand: `py-spy dump --pid PID`"
        )
        return text[:MAX_TEXT]

    def _note_success(self, owner: str) -> None:
        with self._lock:
            times = self._in_a_row.pop(owner, 0)
            was_on_node, self._on_node = self._on_node, None
        if was_on_node is not None:
            log.info("py-spy gives stacks again")
        elif times >= FAILURES_IN_A_ROW:
            log.info("py-spy gives stacks of a process of %s again", owner)

    def _note_failure(self, owner: str, failure: DumpFailure, now: float) -> None:
        with self._lock:
            times = self._in_a_row.pop(owner, 0) + 1
            self._in_a_row[owner] = times
            if len(self._in_a_row) > MAX_OWNERS:
                self._in_a_row.popitem(last=False)
            is_due = times >= FAILURES_IN_A_ROW and now - self._checked_at >= CHECK_EVERY_S
            if is_due:
                self._checked_at = now
        if is_due:
            self._start(self._check)
        if times == FAILURES_IN_A_ROW and not self.sentence():
            log.warning(
                "py-spy failed %d times in a row on processes of %s, last (%s): %s",
                times,
                owner,
                _kind(failure),
                failure.help_text,
            )

    def _check(self) -> None:
        failure = self._dump_own() and self._dump_own()  # twice: the node may have been busy
        with self._lock:
            before, self._on_node = self._on_node, failure
        if failure is not None and before is None:
            log.warning("limit: %s", self.sentence())
        elif failure is None and before is not None:
            log.info("py-spy gives stacks again")


def _kind(failure: DumpFailure) -> str:
    return failure.kind.value.replace("_", " ")
