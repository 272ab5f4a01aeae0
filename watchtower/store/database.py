"""What the store's SQL needs of a database: sqlite3's own interface, and that of PostgreSQL in its
form.

The SQL is the same for both: placeholders are `?`, texts are ordered by their code points, and a
statement uses what both dialects know.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

_T = TypeVar("_T")


class Rows(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int:
        """Rows that a statement has changed."""

    def fetchone(self) -> Any:
        """Return the next row as a tuple; None after the last one."""

    def fetchall(self) -> list[Any]:
        """Return all other rows."""

    def __iter__(self) -> Iterator[Any]:
        """Yield all other rows."""


class Database(Protocol):
    """An open database, for one thread."""

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Rows:
        """Execute one statement."""

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> object:
        """Execute one statement with the values of each row."""


class LostConnectionError(Exception):
    """The connection to the database has ended in a call."""

    def __init__(self, reason: str, *, may_be_done: bool = False) -> None:
        """`may_be_done`: it ended in a commit. It is not known whether the writes are stored."""
        super().__init__(reason)
        self.may_be_done = may_be_done


def once_more(call: Callable[[], _T]) -> _T:
    """Call, and call again if the connection was lost before anything was stored."""
    try:
        return call()
    except LostConnectionError as error:
        if error.may_be_done:
            raise
    return call()


def pack(body: bytes) -> bytes:
    """Return a body as it is stored: JSON of stacks has a tenth of its size then."""
    return zlib.compress(body, 1)


def unpack(stored: bytes) -> bytes:
    """Return a body. Raises ValueError if it is damaged."""
    try:
        return zlib.decompress(stored)
    except (zlib.error, TypeError) as error:
        raise ValueError(f"it cannot be unpacked: {error}") from None
