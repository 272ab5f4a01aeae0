"""Writes that wait for the disk together: what is asked for during one commit goes into the next.

A commit waits for the disk, some milliseconds however little is written. Thousands of nodes that
send dumps at one moment would wait for each other's commits.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from watchtower.worker import Worker

MAX_GROUP = 256
"""Writes in one transaction: what is read meanwhile waits for no more than these."""

Work = Callable[[sqlite3.Connection], Any]
_T = TypeVar("_T")


class GroupedWrites:
    """Takes writes from any thread; the writer thread carries them out in order."""

    def __init__(self, thread: Worker, find_file: Callable[[], sqlite3.Connection]) -> None:
        """`find_file` gives the database to the writer thread, and raises if it is not there."""
        self._thread, self._find_file = thread, find_file
        self._waiting: deque[tuple[Future[Any], Work]] = deque()
        self._lock = threading.Lock()

    def add(self, work: Callable[[sqlite3.Connection], _T]) -> Future[_T]:
        """Carry out a write; the future is done when it is on the disk.

        Raises RuntimeError when the writer thread has stopped.
        """
        future: Future[_T] = Future()
        # Under the lock, so that the group is asked for before whatever this thread asks for next.
        with self._lock:
            if not self._waiting:
                self._thread.submit(self._commit)
            self._waiting.append((future, work))
        return future

    def _commit(self) -> None:
        with self._lock:
            group = [self._waiting.popleft() for _ in range(min(MAX_GROUP, len(self._waiting)))]
            if self._waiting:
                self._thread.submit(self._commit)
        results: list[tuple[Future[Any], Any]] = []
        try:
            with self._find_file() as db:
                for future, work in group:
                    try:
                        results.append((future, _try(db, work)))
                    except Exception as error:
                        future.set_exception(error)
        except Exception as error:
            for future, _ in group:
                if not future.done():
                    future.set_exception(error)
            return
        for future, result in results:
            future.set_result(result)


def _try(db: sqlite3.Connection, work: Work) -> Any:
    """Carry out one write of a group; if it fails, nothing of it stays and the others go on."""
    db.execute("SAVEPOINT one")
    try:
        result = work(db)
    except BaseException:
        db.execute("ROLLBACK TO one")
        raise
    finally:
        db.execute("RELEASE one")
    return result
