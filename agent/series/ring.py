"""A bounded ring of numbers, one a second, stored as differences: one byte for an equal number."""

from __future__ import annotations

from collections import deque

from watchtower.wire.series import MAX_POINTS

CHUNK_POINTS = 60
"""Points that are dropped together. Each chunk begins with a whole number."""

MAX_CHUNKS = MAX_POINTS // CHUNK_POINTS + 1
"""One more than 15 minutes need, because the newest one is not full."""


class Ring:
    """The last `MAX_POINTS` points of one lane."""

    __slots__ = ("_chunks", "_last", "_left")

    def __init__(self) -> None:
        self._chunks: deque[bytearray] = deque(maxlen=MAX_CHUNKS)
        self._last = self._left = 0

    def push(self, point: int | None) -> None:
        """Add a point; None if nothing was measured."""
        if not self._left:
            self._chunks.append(bytearray())
            self._last, self._left = 0, CHUNK_POINTS
        self._left -= 1
        chunk = self._chunks[-1]
        if point is None:
            chunk.append(0)
            return
        change = point - self._last
        self._last = point
        # Even numbers for increases, odd ones for decreases; 7 bits in each byte.
        code = (change << 1 if change >= 0 else (-change << 1) - 1) + 1
        while code > 127:
            chunk.append(code & 127 | 128)
            code >>= 7
        chunk.append(code)

    def points(self) -> list[int | None]:
        """Return all points, oldest first."""
        points: list[int | None] = []
        for chunk in self._chunks:
            last = code = shift = 0
            for byte in chunk:
                code |= (byte & 127) << shift
                shift += 7
                if byte & 128:
                    continue
                if code:
                    change = code - 1
                    last += -((change + 1) >> 1) if change & 1 else change >> 1
                points.append(last if code else None)
                code = shift = 0
        return points[-MAX_POINTS:]

    @property
    def size_bytes(self) -> int:
        """Bytes of all chunks."""
        return sum(map(len, self._chunks))
