"""Python stacks in canonical form. A batch contains each distinct stack once. Its threads refer to
it by its digest."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from watchtower.wire.bounds import (
    MAX_FRAMES,
    MAX_INTEGER,
    MAX_LOOPS,
    MAX_TEXT,
    check_count,
    check_integer,
    check_text,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One Python frame. `function` is as py-spy prints it: qualified on CPython 3.11 and newer."""

    function: str
    file: str
    """For installed packages and the standard library, the path relative to their root:
    "torch/nn/modules/x.py", "queue.py". For the user's own code, the full path."""
    line: int
    library: bool = False
    """True for installed packages and the standard library, false for the user's own code."""
    loops: tuple[int, ...] = ()
    """First lines of the loops around this line in its function, innermost first. Only for the
    user's own code, and only if its source is readable."""
    has_source: bool = False
    """The source was read: if `loops` is empty, the line is not in a loop."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_text("function", self.function, MAX_TEXT)
        check_text("file", self.file, MAX_TEXT)
        check_integer("line", self.line, low=-MAX_INTEGER)
        check_count("loops", len(self.loops), MAX_LOOPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Frames of one thread, innermost first, and their digest."""

    digest: str
    frames: tuple[Frame, ...]

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_text("digest", self.digest)
        check_count("frames", len(self.frames), MAX_FRAMES)


def make_stack(frames: tuple[Frame, ...]) -> Stack:
    """Return a stack whose digest is 16 hex digits of a hash of functions, files and lines."""
    text = "\n".join(f"{frame.function}\t{frame.file}\t{frame.line}" for frame in frames)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return Stack(digest=digest, frames=frames)
