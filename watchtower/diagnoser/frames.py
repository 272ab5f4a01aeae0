"""How requests and answers cross a pipe: a list of byte strings with their lengths before them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

_COUNT = struct.Struct("<I")
_LENGTH = struct.Struct("<Q")

MAX_FRAMES = 65_536
"""Byte strings in one message: two rounds of dumps from 32,768 nodes."""

MAX_MESSAGE_BYTES = 1 << 30
"""Bytes of one message: four times what the fleet keeps of dumps."""


class FrameError(Exception):
    """The bytes on the pipe are not a valid message."""


def pack(frames: Sequence[bytes]) -> list[bytes]:
    """Return what is to be written, the lengths first."""
    lengths = b"".join(_LENGTH.pack(len(frame)) for frame in frames)
    return [_COUNT.pack(len(frames)) + lengths, *frames]


def unpack(read: Callable[[int], bytes]) -> list[bytes]:
    """Read one message; `read` returns exactly as many bytes as it is asked for.

    Raises FrameError, and what `read` raises.
    """
    (count,) = _COUNT.unpack(read(_COUNT.size))
    if count > MAX_FRAMES:
        raise FrameError(f"a message of {count} frames, {MAX_FRAMES} at most")
    lengths = [length for (length,) in _LENGTH.iter_unpack(read(_LENGTH.size * count))]
    if sum(lengths) > MAX_MESSAGE_BYTES:
        raise FrameError(f"a message of {sum(lengths)} bytes, {MAX_MESSAGE_BYTES} at most")
    return [read(length) for length in lengths]
