"""Counts blocking sends and receives by peer, on the heartbeat page.

`torch.distributed.send` and `recv` are wrappers of an inner function (torch logs their exceptions).
The counting is inserted between the two, so the outer function stays the same object: earlier
imports are counted, it compares equal, and it can be pickled. `isend` and `irecv` are not counted:
the end of their transfer can be detected only by replacing what they return.
"""

from __future__ import annotations

import functools
import sys
from _thread import RLock

from watchtower_heartbeat import layout
from watchtower_heartbeat.writer import LOCK_PATIENCE_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

WORDS = len(layout.TRANSFER_WORDS)
LEFT_OUT = layout.TRANSFER_ROWS * WORDS
SENDS = layout.TRANSFER_WORDS.index("sends_begun")
RECEIVES = layout.TRANSFER_WORDS.index("receives_begun")
NOT_COUNTED = -1


class Rows:
    """The rows of one page."""

    def __init__(self, words: memoryview) -> None:
        """`words`: from the first row to `transfers_left_out`, all zero."""
        self._words = words
        self._places: dict[int, int] = {}
        # Several threads may send at once, and a signal handler may interrupt a count.
        self._lock = RLock()

    def begin(self, peer: int, column: int) -> int:
        """Count a call as begun; return the argument for `end`, or NOT_COUNTED."""
        place = NOT_COUNTED
        if self._lock.acquire(True, LOCK_PATIENCE_S):
            try:
                row = self._places.get(peer, NOT_COUNTED)
                if row == NOT_COUNTED and len(self._places) == layout.TRANSFER_ROWS:
                    self._words[LEFT_OUT] += 1
                elif row == NOT_COUNTED:
                    place = self._begin_row(peer, column)
                else:
                    place = row + column
                    self._words[place] += 1
            finally:
                self._lock.release()
        return place

    def _begin_row(self, peer: int, column: int) -> int:
        row = len(self._places) * WORDS
        self._places[peer] = row
        self._words[row + 1] = column == SENDS
        self._words[row + column] = 1
        self._words[row] = layout.ANY_PEER if peer == layout.ANY_PEER else peer + 1
        return row + column

    def end(self, place: int) -> None:
        """Count that call as done."""
        if self._lock.acquire(True, LOCK_PATIENCE_S):
            try:
                self._words[place + 1] += 1
            finally:
                self._lock.release()


_rows: Rows | None = None


def count_on(words: memoryview) -> None:
    """Count on this page from now on."""
    global _rows
    _rows = Rows(words)


def drop() -> None:
    """In a forked child: stop counting on the parent's page."""
    global _rows
    _rows = None


def install(module: ModuleType) -> None:
    """Count the calls of this module's `send` and `recv`. More calls change nothing.

    If a later torch makes them differently, nothing is counted.
    """
    for name, column, find_peer in (
        ("send", SENDS, _peer_of_send),
        ("recv", RECEIVES, _peer_of_recv),
    ):
        outer = getattr(module, name, None)
        inner = getattr(outer, "__wrapped__", None)
        for cell in getattr(outer, "__closure__", None) or ():
            if inner is not None and cell.cell_contents is inner:
                cell.cell_contents = _counting(inner, column, functools.partial(find_peer, module))


def _counting(
    inner: Callable[..., object], column: int, find_peer: Callable[..., int]
) -> Callable[..., object]:
    torch = sys.modules["torch"]  # perhaps not completely imported, so no attribute is read here

    @functools.wraps(inner)
    def counted(*args: object, **kwargs: object) -> object:
        compiler = getattr(torch, "compiler", None)
        # The compiler must see torch's own function.
        if compiler is not None and compiler.is_compiling():
            return inner(*args, **kwargs)
        place = _begin(column, find_peer, args, kwargs)
        try:
            return inner(*args, **kwargs)
        finally:
            if place != NOT_COUNTED:
                _end(place)

    return counted


def _begin(
    column: int, find_peer: Callable[..., int], args: tuple[object, ...], kwargs: dict[str, object]
) -> int:
    rows = _rows
    if rows is None:
        return NOT_COUNTED
    try:
        peer = find_peer(*args, **kwargs)
        return rows.begin(peer, column)
    except Exception:  # wrong arguments: torch reports them better
        return NOT_COUNTED


def _end(place: int) -> None:
    rows = _rows
    try:
        if rows is not None:
            rows.end(place)
    except Exception:  # the page was dropped, as in a child that was forked during the call
        return


def _peer_of_send(
    module: ModuleType,
    tensor: object,
    dst: int | None = None,
    group: object = None,
    tag: int = 0,
    group_dst: int | None = None,
) -> int:
    """Return the global rank of the peer. The arguments are those of `send`."""
    return _global_rank(module, dst, group, group_dst)


def _peer_of_recv(
    module: ModuleType,
    tensor: object,
    src: int | None = None,
    group: object = None,
    tag: int = 0,
    group_src: int | None = None,
) -> int:
    """Return the global rank of the peer, or ANY_PEER. The arguments are those of `recv`."""
    if src is None and group_src is None:
        return layout.ANY_PEER
    return _global_rank(module, src, group, group_src)


def _global_rank(
    module: ModuleType, rank: int | None, group: object, rank_in_group: int | None
) -> int:
    if rank is None and group is not None:
        rank = module.get_global_rank(group, rank_in_group)
    number = int(rank_in_group if rank is None else rank)  # type: ignore[arg-type]
    if number < 0:
        raise ValueError("invalid rank")
    return number
