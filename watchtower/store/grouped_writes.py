"""Groups of writes with one commit: all writes that arrive during a commit are in the next one.

A commit waits for the disk for some milliseconds, also if little is written. With one commit per
write, thousands of nodes that send dumps at one moment would wait for each other. If commits follow
each other quickly, the next one waits for more writes: nodes that send dumps over two seconds would
else cost one commit each, and the interpreter would be busy with them. Consecutive rows of one
table are one statement: after each statement the writer thread waits for the interpreter, up to
5 ms while the event loop is busy.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, TypeVar

from watchtower.service.calls import Executor
from watchtower.service.sharing import TokenBucket
from watchtower.store.database import Database, LostConnectionError, once_more, pack

MAX_GROUP = 256
"""Writes in one transaction. A read waits for one transaction at most."""

MAX_ROWS = 64
"""Rows in one statement, with up to 15 columns. Older versions of SQLite allow 999 values."""


@dataclass(frozen=True, slots=True)
class Insert:
    """A row to be inserted."""

    into: str
    """The statement up to VALUES."""
    row: tuple[object, ...]
    """Bodies, which are bytes, are packed by the writer thread."""
    on_conflict: str = ""

    @property
    def statement(self) -> str:
        """The common SQL text of rows that may be inserted together."""
        return f"{self.into}{self.on_conflict}"


COMMITS, COMMITS_PER_S = 20.0, 50.0
"""Commits at once and per second. Above that, writes are gathered: each is 20 ms later at most."""

Call = Callable[[Database], Any]
_Write = tuple[Future[Any], Call | Insert]
_Done = tuple[Future[Any], Any]
_T = TypeVar("_T")


class GroupedWrites:
    """Accepts writes from any thread. The writer thread executes them in order."""

    def __init__(
        self,
        thread: Executor,
        transaction: Callable[[], AbstractContextManager[Database]],
        commits: TokenBucket | None = None,
    ) -> None:
        """`transaction` begins one in the writer thread, and commits it. It raises if it cannot.

        `commits`: how many commits may follow each other without a wait for more writes.
        """
        self._thread, self._transaction = thread, transaction
        self._groups: deque[list[_Write]] = deque()
        """Waiting groups. For each of them one `_commit` is queued on the thread."""
        self._lock = threading.RLock()  # a call may be executed at once, by the same thread
        self._commits = commits or TokenBucket(COMMITS, COMMITS_PER_S)

    def add(self, call: Callable[[Database], _T]) -> Future[_T]:
        """Queue a write. The future is done when the write is on the disk.

        Raises RuntimeError if the writer thread has stopped.
        """
        future: Future[_T] = Future()
        self._add(future, call)
        return future

    def insert(self, row: Insert) -> Future[None]:
        """Queue the insertion of a row, as `add` does."""
        future: Future[None] = Future()
        self._add(future, row)
        return future

    def _add(self, future: Future[Any], write: Call | Insert) -> None:
        # The lock keeps the order: the group is queued before any later call of this thread.
        with self._lock:
            if self._groups and len(self._groups[-1]) < MAX_GROUP:
                self._groups[-1].append((future, write))
                return
            self._groups.append([(future, write)])
            try:
                self._thread.submit(self._commit)
            except RuntimeError:
                self._groups.pop()
                raise

    def _gather(self) -> None:
        """Wait for more writes if there were many commits and no other group waits."""
        left = self._commits.left(time.monotonic())
        if left < 1 and len(self._groups) == 1:
            time.sleep((1 - left) / COMMITS_PER_S)
        self._commits.take(time.monotonic())

    def _commit(self) -> None:
        self._gather()
        with self._lock:
            queued = self._groups.popleft()
        group = [write for write in queued if write[0].set_running_or_notify_cancel()]
        try:
            results = once_more(lambda: self._execute(group))
        except Exception as error:
            for future, _ in group:
                if not future.done():
                    future.set_exception(error)
            return
        for future, result in results:
            future.set_result(result)

    def _execute(self, group: Sequence[_Write]) -> list[_Done]:
        """Execute the writes that have not failed yet, in one transaction."""
        results: list[_Done] = []
        with self._transaction() as db:
            waiting = (write for write in group if not write[0].done())
            for statement, writes in groupby(waiting, key=_statement_of):
                execute = _insert if statement else _execute
                results += execute(db, writes)
        return results


def _statement_of(write: _Write) -> str:
    return write[1].statement if isinstance(write[1], Insert) else ""


def _insert(db: Database, writes: Iterator[_Write]) -> Iterator[_Done]:
    """Insert rows together. If that fails, insert them one by one."""
    while some := list(islice(writes, MAX_ROWS)):
        rows = [write for _, write in some if isinstance(write, Insert)]
        try:
            _try(db, _insertion(rows))
        except LostConnectionError:
            raise
        except Exception:
            yield from _execute(db, some)
        else:
            yield from ((future, None) for future, _ in some)


def _execute(db: Database, writes: Iterable[_Write]) -> Iterator[_Done]:
    """Execute writes one by one and yield those that succeed. Set the error of a failed write."""
    for future, write in writes:
        call = _insertion([write]) if isinstance(write, Insert) else write
        try:
            result = _try(db, call)
        except LostConnectionError:
            raise
        except Exception as error:
            future.set_exception(error)
        else:
            yield future, result


def _insertion(rows: Sequence[Insert]) -> Call:
    """Return a call that inserts rows with one statement."""
    row = f"({', '.join('?' * len(rows[0].row))})"
    statement = f"{rows[0].into} VALUES {', '.join([row] * len(rows))} {rows[0].on_conflict}"

    def insert(db: Database) -> None:
        values = (value for each in rows for value in each.row)
        db.execute(
            statement, [pack(value) if isinstance(value, bytes) else value for value in values]
        )

    return insert


def _try(db: Database, call: Call) -> Any:
    """Execute one write of a group. If it fails, undo it without effect on the other writes."""
    db.execute("SAVEPOINT one")
    try:
        result = call(db)
    except BaseException:
        db.execute("ROLLBACK TO one")
        raise
    finally:
        db.execute("RELEASE one")
    return result
