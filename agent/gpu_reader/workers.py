"""Threads that read the GPUs: one for all of them, and another one for each that does not return.

A thread for each GPU would wake up eight times a second instead of once. A call may block for ever,
so the others do not wait for it: `watch` starts another thread when a GPU is late.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from agent.gpu_reader.gpu import FAST_S, SLACK_S, Gpu

LATE_S = 0.3
"""A GPU that is due for so long, and that no thread reads, needs another thread."""


class Workers:
    """At most one thread waits for the next read. Each other one is in a call of its own GPU."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self._gpus = gpus
        self._lock = threading.Lock()
        self._read: set[Gpu] = set()
        """GPUs that a thread reads at present."""
        self._has_waiting = False
        """Whether a thread waits for the next read."""
        self._start()

    def watch(self, now: float) -> None:
        """Start another thread if no thread comes to a GPU that is due."""
        with self._lock:
            late = any(now - each.due_at > LATE_S for each in self._gpus if each not in self._read)
            if not late or self._has_waiting:
                return
        self._start()

    def _start(self) -> None:
        threading.Thread(target=self._work, name="gpus", daemon=True).start()

    def _work(self) -> None:
        self._read_due()
        while self._wait():
            self._read_due()

    def _read_due(self) -> None:
        """Read all GPUs that are due and that no other thread reads."""
        now = time.monotonic()
        for gpu in self._gpus:
            with self._lock:
                if gpu in self._read or gpu.due_at > now + SLACK_S:
                    continue
                self._read.add(gpu)
            try:
                gpu.read(now)
            finally:
                with self._lock:
                    self._read.discard(gpu)

    def _wait(self) -> bool:
        """Wait for the next read. Return False if another thread waits already."""
        with self._lock:
            if self._has_waiting:
                return False
            self._has_waiting = True
            due = [gpu.due_at for gpu in self._gpus if gpu not in self._read]
        rest_s = min(due) - time.monotonic() if due else FAST_S
        time.sleep(min(FAST_S, max(SLACK_S, rest_s)))
        with self._lock:
            self._has_waiting = False
        return True
