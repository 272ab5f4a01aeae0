"""Writes values into a mapped page. This module only knows the order of the stores."""

from __future__ import annotations

from _thread import RLock

from watchtower_heartbeat import layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap

WORD = 8

# A cold write takes a microsecond. If the lock is not free for this long, its owner hangs. Then a
# lost value is better than a delay of the training.
LOCK_PATIENCE_S = 0.1


def blank_image() -> bytearray:
    """Return the bytes of a new page."""
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
    """Return `text` as exactly `size` bytes: cut between characters, with at least one NUL at the
    end.
    """
    # Each character has at least one byte, so cutting before encoding loses nothing that fits.
    raw = text[:size].replace("\0", " ").encode("utf-8", "replace")[: size - 1]
    return raw.decode("utf-8", "ignore").encode("utf-8").ljust(size, b"\0")


class PageWriter:
    """Writes one page. `hot` has the three words of a heartbeat: step, time, step begun.

    `transfers` has the words from the first row of transfers to `transfers_left_out`.
    """

    def __init__(self, memory: mmap.mmap | bytearray) -> None:
        """`memory`: a page of `layout.PAGE_SIZE` bytes with the content of `blank_image()`."""
        self._bytes = memoryview(memory)
        self._words = self._bytes.cast("q")
        self.hot = self._words[layout.STEP_AT // WORD : layout.STEP_BEGUN_AT // WORD + 1]
        self.transfers = self._words[
            layout.TRANSFERS_AT // WORD : layout.TRANSFERS_LEFT_OUT_AT // WORD + 1
        ]
        # Re-entrant, because a signal handler may interrupt a write and write itself.
        self._lock = RLock()

    def write(self, **fields: int | str) -> None:
        """Store cold fields by name. A reader sees all of them or none.

        Raises KeyError for an unknown name, TypeError or ValueError for a value that does not fit.
        The page stays readable then.
        """
        if not self._lock.acquire(True, LOCK_PATIENCE_S):
            return
        words = self._words
        try:
            words[layout.COLD_BEGUN_AT // WORD] += 1
            for name, value in fields.items():
                self._store(name, value)
        finally:
            # Copied, not incremented: after an interrupted write, this makes the page valid again.
            words[layout.COLD_DONE_AT // WORD] = words[layout.COLD_BEGUN_AT // WORD]
            self._lock.release()

    def _store(self, name: str, value: int | str) -> None:
        if isinstance(value, str):
            offset, size = layout.COLD_TEXTS[name]
            self._bytes[offset : offset + size] = pad_text(value, size)
        else:
            self._words[layout.COLD_WORDS[name] // WORD] = value

    def release(self) -> None:
        """Release the memory, so that it can be unmapped. Later writes raise."""
        for view in (self.hot, self.transfers, self._words, self._bytes):
            view.release()
