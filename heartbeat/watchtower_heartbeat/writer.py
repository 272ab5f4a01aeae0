"""Puts values into a page that somebody else mapped; knows the store order and nothing else."""

from __future__ import annotations

from _thread import RLock

from watchtower_heartbeat import layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap

WORD = 8

# A cold write takes a microsecond. Whoever cannot get the lock for this long has met a thread that
# will not come back, and losing one note is better than holding up training.
LOCK_PATIENCE_S = 0.1


def blank_image() -> bytearray:
    """Return the bytes of a page on which nothing has happened yet."""
    image = bytearray(layout.PAGE_SIZE)
    image[: len(layout.MAGIC)] = layout.MAGIC
    with memoryview(image) as data, data.cast("q") as words:
        words[layout.VERSION_AT // WORD] = layout.VERSION
        words[layout.SIZE_AT // WORD] = layout.PAGE_SIZE
        words[layout.STEP_AT // WORD] = layout.UNKNOWN
        words[layout.STEP_BEGUN_AT // WORD] = layout.UNKNOWN
        for name in layout.STARTS_UNKNOWN:
            words[layout.COLD_WORDS[name] // WORD] = layout.UNKNOWN
    return image


def pad_text(text: str, size: int) -> bytes:
    """Return `text` as exactly `size` bytes: cut between characters, at least one NUL behind it."""
    # One character is at least one byte, so the cut before encoding loses nothing that would fit.
    raw = text[:size].replace("\0", " ").encode("utf-8", "replace")[: size - 1]
    return raw.decode("utf-8", "ignore").encode("utf-8").ljust(size, b"\0")


class PageWriter:
    """Writes one page; `hot` is the three words of a beat: step, time, step begun.

    `transfers` is the words from the first row of transfers to `transfers_left_out`.
    """

    def __init__(self, memory: mmap.mmap | bytearray) -> None:
        """Take a page of `layout.PAGE_SIZE` bytes that starts as `blank_image()`."""
        self._bytes = memoryview(memory)
        self._words = self._bytes.cast("q")
        self.hot = self._words[layout.STEP_AT // WORD : layout.STEP_BEGUN_AT // WORD + 1]
        self.transfers = self._words[
            layout.TRANSFERS_AT // WORD : layout.TRANSFERS_LEFT_OUT_AT // WORD + 1
        ]
        # Re-entrant, because a signal handler may interrupt a write and write itself.
        self._lock = RLock()

    def write(self, **fields: int | str) -> None:
        """Store cold fields by name, all of them or, to a reader, none.

        Raises KeyError for a name that is not in the layout, TypeError or ValueError for a value
        that does not fit; the page stays readable then.
        """
        if not self._lock.acquire(True, LOCK_PATIENCE_S):
            return
        words = self._words
        try:
            words[layout.COLD_BEGUN_AT // WORD] += 1
            for name, value in fields.items():
                self._store(name, value)
        finally:
            # Not counted on from before: after an interrupted write this one makes it whole again.
            words[layout.COLD_DONE_AT // WORD] = words[layout.COLD_BEGUN_AT // WORD]
            self._lock.release()

    def _store(self, name: str, value: int | str) -> None:
        if isinstance(value, str):
            offset, size = layout.COLD_TEXTS[name]
            self._bytes[offset : offset + size] = pad_text(value, size)
        else:
            self._words[layout.COLD_WORDS[name] // WORD] = value

    def release(self) -> None:
        """Let go of the memory, so that it can be unmapped; writing afterwards is an error."""
        for view in (self.hot, self.transfers, self._words, self._bytes):
            view.release()
