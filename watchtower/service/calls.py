"""Calls that may take long: in a thread that never delays the end of the process, or at once;
and `async with timeout(seconds)`, on every Python.

`timeout` raises `asyncio.TimeoutError`. Before Python 3.11 that is another exception than
`TimeoutError`.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

if sys.version_info >= (3, 11):
    timeout = asyncio.timeout
else:
    import async_timeout

    timeout = async_timeout.timeout


_T = TypeVar("_T")


class Executor(Protocol):
    """Runs calls in order."""

    def submit(self, call: Callable[[], _T]) -> Future[_T]:
        """Queue a call and return its future. Raises RuntimeError after `stop`."""

    def stop(self, patience_s: float) -> bool:
        """Run the queued calls and accept no more. Return False if they take longer than
        `patience_s` seconds."""


class InlineExecutor:
    """Runs each call at once, in the thread of its caller."""

    def __init__(self) -> None:
        self._is_stopped = False

    def submit(self, call: Callable[[], _T]) -> Future[_T]:
        """Run a call and return its future, which is done. Raises RuntimeError after `stop`."""
        if self._is_stopped:
            raise RuntimeError("the calls have stopped")
        future: Future[_T] = Future()
        try:
            future.set_result(call())
        except Exception as error:
            future.set_exception(error)
        return future

    def stop(self, patience_s: float) -> bool:
        """Accept no more calls. Return True: no call waits."""
        self._is_stopped = True
        return True


class DaemonExecutor:
    """One daemon thread and its queue.

    At exit the interpreter waits for the threads of concurrent.futures, but not for this one: a
    call that hangs on a disk or in a diagnosis does not block the exit.
    """

    def __init__(self, name: str) -> None:
        """Start the thread."""
        self._work: deque[tuple[Future[Any], Callable[[], Any]] | None] = deque()
        self._wake = threading.Condition()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], _T]) -> Future[_T]:
        """Queue a call and return its future. Raises RuntimeError after `stop`."""
        future: Future[_T] = Future()
        with self._wake:
            if self._is_stopped:
                raise RuntimeError(f"{self._thread.name} has stopped")
            self._work.append((future, call))
            self._wake.notify()
        return future

    def stop(self, patience_s: float) -> bool:
        """Run the queued calls and end the thread. Return False if it is not done in `patience_s`
        seconds."""
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
            del future, call, item  # else their memory would be in use until the next call
