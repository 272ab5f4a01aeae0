"""The native functions of one thread: names of functions, from the symbols of its libraries.

They are read only if they were ordered, because the process is stopped meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.wire.bounds import (
    AGE,
    NAME,
    TEXT,
    bounded,
    entries,
)

MAX_NATIVE_FRAMES = 24
"""Frames of one stack, innermost first. A wait in a device library has about ten before Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(file=NAME, function=NAME)
class NativeFrame:
    """One native frame. All texts are those of the program that was read."""

    file: str
    """Base name of the library: "libnccl.so.2"."""
    function: str = ""
    """Name from the symbols of the library, "pthread_cond_wait"; empty if it has none here."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(calls=entries(MAX_NATIVE_FRAMES), age_s=AGE, failure=TEXT)
class NativeFunctions:
    """The native frames of the main thread between its place and its innermost Python frame, or why
    they were not read."""

    calls: tuple[NativeFrame, ...] = ()
    """Innermost first. Empty if the thread runs Python itself."""
    is_whole: bool = False
    """The frames lead to the Python frame. False: the callers of the last one are not known, as
    for some threads that spin."""
    age_s: float = 0.0
    """Seconds between reading the functions and the dump that contains them."""
    failure: str = ""
    """Why there are none; empty if they were read."""
