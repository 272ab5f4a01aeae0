"""A thread that does work in order and never holds up the end of the process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

_T = TypeVar("_T")


class DaemonExecutor:
    """One daemon thread and its queue. The interpreter waits for the threads of an executor when
    it exits; what hangs here (a disk, a diagnosis of a hundred thousand ranks) is left behind."""

    def __init__(self, name: str) -> None:
        """Start the thread."""
        self._work: deque[tuple[Future[Any], Callable[[], Any]] | None] = deque()
        self._wake = threading.Condition()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], _T]) -> Future[_T]:
        """Queue a call. Raises RuntimeError when the worker was stopped."""
        future: Future[_T] = Future()
        with self._wake:
            if self._is_stopped:
                raise RuntimeError(f"{self._thread.name} has stopped")
            self._work.append((future, call))
            self._wake.notify()
        return future

    def stop(self, patience_s: float) -> bool:
        """Finish what was queued; False when that takes longer and is left behind."""
        with self._wake:
            self._is_stopped = True
            self._work.append(None)
            self._wake.notify()
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._work:
                    self._wake.wait()
                item = self._work.popleft()
            if item is None:
                return
            future, call = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            del future, call, item  # what it held is not kept until the next call
