"""Runs reads in /proc that may hang, under a deadline.

The kernel reads /proc/PID/environ and /proc/PID/cmdline from the memory of that process. For this
it takes the lock of the memory map (mmap_lock, access_remote_vm in mm/memory.c). While the process
maps a file on a mount that hangs, every reader blocks; `ps` hangs in the same way. A process can
also exchange a descriptor between a check and the read that was allowed by it: then the reader
meets a file of a program that never answers. Therefore a thread reads, and the caller waits for it
only for a limited time. A blocked thread is abandoned until the kernel releases it. Owners share
the time for such waits and the number of such threads.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from watchtower.service.sharing import has_share

log = logging.getLogger(__name__)

READ_WAIT_S = 0.25
"""Seconds to wait for one read. It usually takes 20 us."""

READ_WAIT_BURST_S = 1.0
READ_WAIT_SHARE = 0.1
"""The share of all time that such waits may use after the first burst. Reports continue, however
many processes hang.
"""

MAX_STUCK_READS = 64
"""Threads blocked in such a read. For an owner that has used up its share of them, nothing more is
read until one of its threads returns.
"""

BLOCKED_S = 10.0
"""A read that is blocked for this long is reported, once. A busy machine delays reads for less."""

FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0
"""Pause before the next read of a process that did not answer in time. It doubles each time."""

MAX_PAUSES = 1024
"""Processes with such a pause. If there are more, the oldest pause is dropped."""

T = TypeVar("T")


@dataclass(slots=True)
class _BlockedRead:
    """A read that has not returned."""

    owner: str
    since: float
    is_reported: bool = False


class GuardedReads:
    """Runs one read at a time, in one thread that can be abandoned."""

    def __init__(
        self,
        find_owner: Callable[[int], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`find_owner` returns the owner of a process. It is called only while some reads are
        blocked.
        """
        self._find_owner, self._clock = find_owner, clock
        self._lock = threading.Lock()
        self._stuck: dict[int, _BlockedRead] = {}
        """The reads that are blocked, by pid."""
        self._pauses: dict[int, tuple[float, float]] = {}
        """Length and end of the pause of each process that did not answer in time, by pid."""
        self._thread: _Thread | None = None
        self._waited_s: dict[str, float] = {}
        """Seconds waited by owner, minus the refill since then."""
        self._refilled_at = clock()

    def run(self, pid: int, read: Callable[[], T]) -> T | None:
        """Return the result of a read of a process, or None without one in time.

        The result is None at once in three cases: the last read of this process is still blocked,
        it did not answer in time a moment ago, or its owner has used up its share of the waiting
        time. The caller may ask again later. Raises what `read` raises.
        """
        with self._lock:
            self._refill()
            self._report_blocked(pid)
            is_paused = pid in self._pauses and self._clock() < self._pauses[pid][1]
            if pid in self._stuck or is_paused or not self._has_share(pid):
                return None
            if self._thread is None:
                self._thread = _Thread(self._came_back)
            answer = self._thread.run(pid, read)
            if answer is None:
                self._leave_behind(self._thread, pid)
                return None
            self._pauses.pop(pid, None)
            return answer.result()

    def _has_share(self, pid: int) -> bool:
        stuck = [each.owner for each in list(self._stuck.values())]
        if not (stuck or self._waited_s):
            return True
        owner = self._find_owner(pid)
        return has_share(Counter(stuck), owner, MAX_STUCK_READS) and has_share(
            self._waited_s, owner, READ_WAIT_BURST_S
        )

    def _came_back(self, pid: int) -> None:
        self._stuck.pop(pid, None)

    def _leave_behind(self, thread: _Thread, pid: int) -> None:
        self._thread = None
        owner = self._find_owner(pid)
        self._waited_s[owner] = self._waited_s.get(owner, 0.0) + READ_WAIT_S
        now = self._clock()
        self._stuck[pid] = _BlockedRead(owner, now)
        length_s, _ = self._pauses.pop(pid, (FIRST_PAUSE_S / 2, 0.0))
        length_s = min(2 * length_s, MAX_PAUSE_S)
        self._pauses[pid] = length_s, now + length_s
        if len(self._pauses) > MAX_PAUSES:
            del self._pauses[next(iter(self._pauses))]
        thread.end()

    def _report_blocked(self, pid: int) -> None:
        """Log once that the read of this process is blocked for too long."""
        blocked = self._stuck.get(pid)
        if blocked is None or blocked.is_reported or self._clock() - blocked.since < BLOCKED_S:
            return
        blocked.is_reported = True
        log.warning(
            "a read of pid %d in /proc hangs for %d s: its memory map is locked, as when it maps a "
            "file on a mount that hangs (%d such processes)",
            pid,
            self._clock() - blocked.since,
            len(self._stuck),
        )

    def _refill(self) -> None:
        now = self._clock()
        earned_s = (now - self._refilled_at) * READ_WAIT_SHARE
        self._refilled_at = now
        left = 1.0 - earned_s / max(sum(self._waited_s.values()), 1e-9)
        self._waited_s = {owner: s * left for owner, s in self._waited_s.items() if left > 0}


class _Thread:
    """A thread that runs the requested reads."""

    def __init__(self, came_back: Callable[[int], None]) -> None:
        self._came_back = came_back
        self._asked: queue.SimpleQueue[tuple[int, Callable[[], Any]] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="guarded-reads", daemon=True).start()

    def run(self, pid: int, read: Callable[[], T]) -> Future[T] | None:
        self._asked.put((pid, read))
        try:
            return self._answers.get(timeout=READ_WAIT_S)
        except queue.Empty:
            return None

    def end(self) -> None:
        """Stop the thread: it ends when its current read returns, and reports the pid of that
        read.
        """
        self._asked.put(None)

    def _run(self) -> None:
        last = 0
        while (asked := self._asked.get()) is not None:
            last, read = asked
            answer: Future[Any] = Future()
            try:
                answer.set_result(read())
            except Exception as error:
                answer.set_exception(error)
            self._answers.put(answer)
        self._came_back(last)
