"""Python stacks in canonical form. Each distinct stack crosses once in a batch, then its digest."""

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
    """One Python frame. `function` is as py-spy prints it: qualified on CPython >= 3.11."""

    function: str
    file: str
    """Installed packages and the standard library relative to their root ("torch/nn/modules/x.py",
    "queue.py"), the user's own code by its full path."""
    line: int
    library: bool = False
    """True for installed packages and the standard library, false for the user's own code."""
    loops: tuple[int, ...] = ()
    """Lines where the loops around this line begin, innermost first, within its function. Only of
    the user's own code, and only where its source could be read."""
    has_source: bool = False
    """The source was read, so that no `loops` means that the line is in none."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_text("function", self.function, MAX_TEXT)
        check_text("file", self.file, MAX_TEXT)
        check_integer("line", self.line, low=-MAX_INTEGER)
        check_count("loops", len(self.loops), MAX_LOOPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Frames of one thread, innermost first, named by their digest."""

    digest: str
    frames: tuple[Frame, ...]

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_text("digest", self.digest)
        check_count("frames", len(self.frames), MAX_FRAMES)


def make_stack(frames: tuple[Frame, ...]) -> Stack:
    """Name a stack by 16 hex digits of a hash over its functions, files and lines."""
    text = "\n".join(f"{frame.function}\t{frame.file}\t{frame.line}" for frame in frames)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return Stack(digest=digest, frames=frames)
