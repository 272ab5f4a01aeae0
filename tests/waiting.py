"""Waiting for a condition, with a deadline: for tests with real processes, threads and sockets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

PATIENCE_S = 30.0
"""Tests share two cores with whatever else runs; a healthy run needs a tenth of it."""


def wait_until(claim: Callable[[], _T], what: str, patience_s: float = PATIENCE_S) -> _T:
    """Return what `claim` returns as soon as it is true; fail with `what` after the deadline."""
    deadline = time.monotonic() + patience_s
    while not (result := claim()):
        assert time.monotonic() < deadline, f"not within {patience_s:g} s: {what}"
        time.sleep(0.01)
    return result
