"""Delays further dumps of processes on which py-spy had to be ended."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

from watchtower.wire.bounds import MAX_TEXT
from watchtower.wire.dumps import DumpFailure

FIRST_PAUSE_S = 5.0
"""Pause after the second failure in a row. The first failure causes no pause, so that a node that
was busy for a moment does not cost a rank the second round of its dump.
"""

LONGEST_PAUSE_S = 320.0
"""The pause doubles each time, up to this."""

MAX_KNOWN = 4096
"""Processes remembered: four times the ranks of a node. The oldest are dropped."""

ProcessId = tuple[int, int]
"""Process id and start time."""


class _Trouble(NamedTuple):
    failure: DumpFailure
    times: int
    until: float


class ToolBackoff:
    """Counts for each process how often in a row the tool had to be ended. Thread-safe."""

    def __init__(self) -> None:
        self._troubles: OrderedDict[ProcessId, _Trouble] = OrderedDict()
        self._lock = threading.Lock()

    def times(self, process: ProcessId) -> int:
        """Return how often in a row the tool had to be ended; 0 if the last dump succeeded."""
        with self._lock:
            trouble = self._troubles.get(process)
        return trouble.times if trouble is not None else 0

    def refuse(self, process: ProcessId, now: float) -> DumpFailure | None:
        """Return why the process is not dumped now; None if it may be."""
        with self._lock:
            trouble = self._troubles.get(process)
        if trouble is None or now >= trouble.until:
            return None
        text = (
            f"not dumped again for {trouble.until - now:.0f} s, because the tool had to be ended "
            f"{trouble.times} times in a row: {trouble.failure.help_text}"
        )
        return DumpFailure(kind=trouble.failure.kind, help_text=text[:MAX_TEXT])

    def note(self, process: ProcessId, failure: DumpFailure | None, now: float) -> None:
        """Record a dump that ended at `now`. `failure`: why the tool had to be ended, else None."""
        with self._lock:
            before = self._troubles.pop(process, None)
            if failure is None:
                return
            times = before.times + 1 if before is not None else 1
            doubled = FIRST_PAUSE_S * 2.0 ** min(times - 2, 30) if times > 1 else 0.0
            pause_s = min(LONGEST_PAUSE_S, doubled)
            self._troubles[process] = _Trouble(failure, times, now + pause_s)
            if len(self._troubles) > MAX_KNOWN:
                self._troubles.popitem(last=False)
