"""Format of requests and answers on a pipe: a count, the lengths, then as many byte strings."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

_COUNT = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")

MAX_FRAMES = 65_536
"""Byte strings in one message: two rounds of dumps from 32,768 nodes."""

MAX_MESSAGE_BYTES = 1 << 30
"""Bytes of one message: four times the limit of dumps that the fleet keeps."""


class FrameError(Exception):
    """The bytes on the pipe are not a valid message."""


def pack(frames: Sequence[bytes]) -> list[bytes]:
    """Return the byte strings to write: count and lengths first, then the frames."""
    lengths = b"".join(_LENGTH.pack(len(frame)) for frame in frames)
    return [_COUNT.pack(len(frames)) + lengths, *frames]


def unpack(read: Callable[[int], bytes]) -> list[bytes]:
    """Read one message and return its frames. `read` must return exactly the requested size.

    Raises FrameError, and the errors of `read`.
    """
    (count,) = _COUNT.unpack(read(_COUNT.size))
    if count > MAX_FRAMES:
        raise FrameError(f"the message has {count} frames, at most {MAX_FRAMES} are allowed")
    lengths = [length for (length,) in _LENGTH.iter_unpack(read(_LENGTH.size * count))]
    if sum(lengths) > MAX_MESSAGE_BYTES:
        raise FrameError(
            f"the message has {sum(lengths)} bytes, at most {MAX_MESSAGE_BYTES} are allowed"
        )
    return [read(length) for length in lengths]
