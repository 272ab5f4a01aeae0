"""Reads the environment and command line of processes under a deadline.

The kernel reads /proc/PID/environ and /proc/PID/cmdline from the memory of that process. For this
it takes the lock of the memory map (mmap_lock, access_remote_vm in mm/memory.c). While the process
maps a file on a mount that hangs, every reader blocks; `ps` hangs in the same way. Therefore a
thread reads, and the caller waits for it only for a limited time. A blocked thread is abandoned
until the kernel releases it. Owners share the time for such waits and the number of such threads.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from agent.procfs import Proc
from watchtower.fair_places import has_share

PROC_ARGS_WAIT_S = 0.25
"""Seconds to wait for one read. It usually takes 20 us; if longer, the memory map is locked."""

PROC_ARGS_WAIT_BURST_S = 1.0
PROC_ARGS_WAIT_SHARE = 0.1
"""The share of all time that such waits may use after the first burst. Reports continue, however
many processes hang.
"""

MAX_STUCK_READS = 64
"""Threads blocked in such a read. For an owner that has used up its share of them, nothing more is
read until one of its threads returns.
"""

log = logging.getLogger(__name__)

MAX_COMMAND_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedWith:
    """The environment and command line of a process, raw. Empty if not readable or the process
    ended.
    """

    environ: bytes
    command: bytes


class ProcArgsReader:
    """Reads under a deadline, one process at a time, in one thread that can be abandoned."""

    def __init__(
        self,
        proc: Proc,
        find_owner: Callable[[int], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`find_owner` returns the owner of a process. It is called only while some reads are
        blocked.
        """
        self._proc, self._find_owner, self._clock = proc, find_owner, clock
        self._lock = threading.Lock()
        self._stuck: dict[int, str] = {}
        """The owner of each process whose read is blocked, by pid."""
        self._thread: _Thread | None = None
        self._waited_s: dict[str, float] = {}
        """Seconds waited by owner, minus the refill since then."""
        self._refilled_at = clock()

    def read(self, pid: int) -> StartedWith | None:
        """Return the environment and command line of a process; None if there is no answer in time.

        The result is None at once in two cases: the last read of this process is still blocked, or
        its owner has used up its share of the waiting time. The caller may ask again later.
        """
        with self._lock:
            self._refill()
            if pid in self._stuck or not self._has_share(pid):
                return None
            if self._thread is None:
                self._thread = _Thread(self._proc, self._came_back)
            answer = self._thread.read(pid)
            if answer is None:
                self._leave_behind(self._thread, pid)
            return answer

    def _has_share(self, pid: int) -> bool:
        stuck = list(self._stuck.values())
        if not (stuck or self._waited_s):
            return True
        owner = self._find_owner(pid)
        return has_share(Counter(stuck), owner, MAX_STUCK_READS) and has_share(
            self._waited_s, owner, PROC_ARGS_WAIT_BURST_S
        )

    def _came_back(self, pid: int) -> None:
        self._stuck.pop(pid, None)

    def _leave_behind(self, thread: _Thread, pid: int) -> None:
        self._thread = None
        owner = self._find_owner(pid)
        self._waited_s[owner] = self._waited_s.get(owner, 0.0) + PROC_ARGS_WAIT_S
        self._stuck[pid] = owner
        thread.end()
        log.warning(
            "cannot read the command line of pid %d: its memory map is locked, as when it "
            "maps a file on a mount that hangs (%d such processes)",
            pid,
            len(self._stuck),
        )

    def _refill(self) -> None:
        now = self._clock()
        earned_s = (now - self._refilled_at) * PROC_ARGS_WAIT_SHARE
        self._refilled_at = now
        left = 1.0 - earned_s / max(sum(self._waited_s.values()), 1e-9)
        self._waited_s = {owner: s * left for owner, s in self._waited_s.items() if left > 0}


class _Thread:
    """A thread that reads the requested processes."""

    def __init__(self, proc: Proc, came_back: Callable[[int], None]) -> None:
        self._proc, self._came_back = proc, came_back
        self._asked: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[StartedWith] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="proc-args", daemon=True).start()

    def read(self, pid: int) -> StartedWith | None:
        self._asked.put(pid)
        try:
            return self._answers.get(timeout=PROC_ARGS_WAIT_S)
        except queue.Empty:
            return None

    def end(self) -> None:
        """Stop the thread: it ends when its current read returns, and reports the pid of that
        read.
        """
        self._asked.put(None)

    def _run(self) -> None:
        last = 0
        while (pid := self._asked.get()) is not None:
            last = pid
            environ = self._proc.try_read(pid, "environ")
            command = self._proc.try_read(pid, "cmdline", MAX_COMMAND_BYTES)
            self._answers.put(StartedWith(environ=environ, command=command))
        self._came_back(last)
