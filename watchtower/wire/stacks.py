"""Python stacks in canonical form. A batch contains each distinct stack once. Its threads refer to
it by its digest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from watchtower.wire.bounds import (
    MAX_FRAMES,
    MAX_INTEGER,
    MAX_LOOPS,
    NAME,
    TEXT,
    bounded,
    entries,
    integer,
)


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(function=TEXT, file=TEXT, line=integer(-MAX_INTEGER), loops=entries(MAX_LOOPS))
class Frame:
    """One Python frame. `function` is as py-spy prints it: qualified on CPython 3.11 and newer."""

    function: str
    file: str
    """For installed packages and the standard library, the path relative to their root:
    "torch/nn/modules/x.py", "queue.py". For the user's own code, the full path. "<generated>" for
    code that torch generates, which counts as a library."""
    line: int
    library: bool = False
    """True for installed packages and the standard library, false for the user's own code."""
    loops: tuple[int, ...] = ()
    """First lines of the loops around this line in its function, innermost first. Only for the
    user's own code, and only if its source is readable."""
    has_source: bool = False
    """The source was read: if `loops` is empty, the line is not in a loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(digest=NAME, frames=entries(MAX_FRAMES))
class Stack:
    """Frames of one thread, innermost first, and their digest."""

    digest: str
    frames: tuple[Frame, ...]


def make_stack(frames: tuple[Frame, ...]) -> Stack:
    """Return a stack whose digest is 16 hex digits of a hash of functions, files and lines."""
    text = "\n".join(f"{frame.function}\t{frame.file}\t{frame.line}" for frame in frames)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return Stack(digest=digest, frames=frames)
