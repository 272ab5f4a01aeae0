"""Reads a heartbeat page: from the bytes of another process to a `PageView`.

The bytes are not trusted: the owner of the process may have written anything. The page is read and
not mapped: if the file is shortened, a mapping causes a SIGBUS and a read does not.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, replace
from typing import Any, Literal

from watchtower_heartbeat.layout import (
    ANY_PEER,
    COLD_BEGUN_AT,
    COLD_DONE_AT,
    COLD_TEXTS,
    COLD_WORDS,
    ENDED_EXCEPTION,
    ENDED_EXIT,
    ENDED_FINISHED,
    ENDED_NOT,
    MAGIC,
    MAGIC_AT,
    PAGE_SIZE,
    SIZE_AT,
    STEP_AT,
    STEP_BEGUN_AT,
    TIME_NS_AT,
    TRANSFER_ROWS,
    TRANSFER_WORDS,
    TRANSFERS_AT,
    TRANSFERS_LEFT_OUT_AT,
    VERSION,
    VERSION_AT,
)

READ_TRIES = 4
"""A store takes nanoseconds and a read a microsecond. A page torn four times has a stopped
writer.
"""

Ended = Literal["none", "finished", "exception", "exit", "other"]

_ENDED: dict[int, Ended] = {
    ENDED_NOT: "none",
    ENDED_FINISHED: "finished",
    ENDED_EXCEPTION: "exception",
    ENDED_EXIT: "exit",
}
_WORD = struct.Struct("=q")
_STEP_END = STEP_BEGUN_AT + _WORD.size
"""The words from `STEP_AT` to here are written with each step, all others seldom."""
_ROW = struct.Struct(f"={len(TRANSFER_WORDS)}q")


class PageError(Exception):
    """This version cannot read the bytes as a page; `reason` contains the cause."""

    def __init__(self, reason: str) -> None:
        """`reason`: a phrase for a log line."""
        super().__init__(reason)
        self.reason = reason


class TornPage(PageError):
    """The page was written while it was read. Read it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """Blocking sends and receives with one peer since the process started.

    `peer` is a global rank, or `ANY_PEER` for receives from any sender. If more calls have begun
    than are done, the process is inside such a call. `opened_by_send`: the first call with this
    peer was a send.
    """

    peer: int
    opened_by_send: bool
    sends_begun: int
    sends_done: int
    receives_begun: int
    receives_done: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PageView:
    """The content of one process's page: a field for each one of the layout. Times are
    CLOCK_MONOTONIC in ns; unknown is -1.

    `record_socket` (a path) and `groups_descriptor` (a number) are as the process itself sees them;
    "" and 0 if it has none.

    `ended` is "none" while the process runs, and also after `_exit` or a signal. It is "finished"
    after a normal shutdown; `sys.exit(3)` is recorded like this too. If `beat_ns` is later than
    `ended_ns`, the process has survived its exception.

    `torn`: the writer was stopped in the middle of a write, so values may belong to two moments.
    """

    step: int
    beat_ns: int
    pid: int
    start_time_ticks: int
    rank: int
    world_size: int
    local_rank: int
    job: str
    phase: str
    phase_since_ns: int
    nonfinite_losses: int
    first_nonfinite_step: int
    last_nonfinite_step: int
    ended: Ended
    ended_ns: int
    exit_code: int
    exception_type: str
    exception_message: str
    record_socket: str
    declared: str
    groups_descriptor: int
    transfers: tuple[Transfers, ...]
    transfers_left_out: int
    torn: bool = False


def decode(data: bytes, *, allow_torn: bool = False) -> PageView:
    """Return the content of the page.

    Raises TornPage if the bytes were read in the middle of a write. With `allow_torn`, the last
    complete step is returned instead, and the view is marked. Raises PageError for an invalid page.
    """
    _check_head(data)
    torn = _is_torn(data)
    if torn and not allow_torn:
        raise TornPage("read in the middle of a write")
    fields: dict[str, Any] = {name: _word(data, offset) for name, offset in COLD_WORDS.items()}
    fields |= {name: _text(data, *place) for name, place in COLD_TEXTS.items()}
    fields["exception_message"] = _lines(data, *COLD_TEXTS["exception_message"])
    fields["declared"] = _lines(data, *COLD_TEXTS["declared"])
    fields["ended"] = _ENDED.get(fields["ended"], "other")
    return PageView(
        step=_word(data, STEP_AT),
        beat_ns=_word(data, TIME_NS_AT),
        transfers=_transfers(data),
        transfers_left_out=_word(data, TRANSFERS_LEFT_OUT_AT),
        torn=torn,
        **fields,
    )


def read_page(descriptor: int) -> PageView:
    """Return the page behind an open descriptor. Takes about 30 us and never waits.

    A torn page is read again. If the writer was stopped in the middle of a write, the view is
    marked `torn`. Raises PageError if there is no page or it cannot be read.
    """
    return PageReader(descriptor).read()


class PageReader:
    """Reads one page again and again, and decodes only what has changed.

    Most reads find another step and nothing else. These take less than half of the first one.
    """

    def __init__(self, descriptor: int) -> None:
        """The open file `descriptor` belongs to the caller."""
        self._descriptor = descriptor
        self._last: tuple[bytes, PageView] | None = None
        """The last page that was not torn. Another thread may read at the same time."""

    def read(self) -> PageView:
        """Return the page, as `read_page` does."""
        for _ in range(READ_TRIES - 1):
            data = _pread(self._descriptor)
            try:
                view = self._decode(data)
            except TornPage:
                continue
            self._last = data, view
            return view
        return decode(_pread(self._descriptor), allow_torn=True)

    def _decode(self, data: bytes) -> PageView:
        if self._last is None:
            return decode(data)
        before, view = self._last
        if data == before:
            return view
        if data[:STEP_AT] != before[:STEP_AT] or data[_STEP_END:] != before[_STEP_END:]:
            return decode(data)
        if _is_torn(data):
            raise TornPage("read in the middle of a write")
        return replace(view, step=_word(data, STEP_AT), beat_ns=_word(data, TIME_NS_AT))


def _pread(descriptor: int) -> bytes:
    try:
        return os.pread(descriptor, PAGE_SIZE, 0)
    except OSError as error:
        raise PageError(f"cannot be read: {error.strerror}") from error


def _check_head(data: bytes) -> None:
    if len(data) < PAGE_SIZE:
        raise PageError(f"{len(data)} bytes, a page has {PAGE_SIZE}")
    if data[MAGIC_AT : MAGIC_AT + len(MAGIC)] != MAGIC:
        raise PageError("does not begin with the magic bytes")
    if _word(data, VERSION_AT) != VERSION:
        raise PageError(f"layout version {_word(data, VERSION_AT)}, this reader supports {VERSION}")
    if _word(data, SIZE_AT) != PAGE_SIZE:
        raise PageError(f"size field is {_word(data, SIZE_AT)} bytes, not {PAGE_SIZE}")


def _is_torn(data: bytes) -> bool:
    return _word(data, STEP_AT) != _word(data, STEP_BEGUN_AT) or (
        _word(data, COLD_DONE_AT) != _word(data, COLD_BEGUN_AT)
    )


def _word(data: bytes, offset: int) -> int:
    value: int = _WORD.unpack_from(data, offset)[0]
    return value


def _transfers(data: bytes) -> tuple[Transfers, ...]:
    rows = (_ROW.unpack_from(data, TRANSFERS_AT + _ROW.size * at) for at in range(TRANSFER_ROWS))
    found = (_transfers_of_row(*row) for row in rows)
    return tuple(transfers for transfers in found if transfers is not None)


def _transfers_of_row(peer: int, opened_by_send: int, *counts: int) -> Transfers | None:
    """Return None for an unused row and for an invalid one."""
    if peer < -1 or peer == 0 or opened_by_send not in (0, 1) or min(counts) < 0:
        return None
    sends_begun, sends_done, receives_begun, receives_done = counts
    # The row is read front to back while the writer continues. `done` is read later, so it may be
    # ahead of `begun`. Such a peer counts as idle.
    return Transfers(
        peer=ANY_PEER if peer == -1 else peer - 1,
        opened_by_send=bool(opened_by_send),
        sends_begun=max(sends_begun, sends_done),
        sends_done=sends_done,
        receives_begun=max(receives_begun, receives_done),
        receives_done=receives_done,
    )


def _text(data: bytes, offset: int, size: int) -> str:
    return _clean(_raw(data, offset, size))


def _lines(data: bytes, offset: int, size: int) -> str:
    """Return the lines that are not blank, with line feeds between them."""
    lines = map(_clean, _raw(data, offset, size).split("\n"))
    return "\n".join(line for line in lines if line)


def _raw(data: bytes, offset: int, size: int) -> str:
    return data[offset : offset + size].partition(b"\0")[0].decode("utf-8", "replace")


def _clean(text: str) -> str:
    # Characters that cannot be printed (escape sequences, line breaks, text that runs backwards)
    # must not reach a terminal or a log.
    return "".join(char if char.isprintable() else " " for char in text).strip()
