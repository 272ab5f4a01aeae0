"""A Python process of the agent that only waits. py-spy is tried on it.

The agent itself is not usable for this: its threads run, so a dump without stopping it may fail.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
from collections.abc import Iterator

from agent.dumpers.tool_limits import confine

READY_S = 3.0
"""Seconds to wait for its start. It starts in 20 ms."""

_WAIT = "print(flush=True); input()"
"""It ends with its parent, because the parent's end of the pipe is closed then."""


@contextlib.contextmanager
def quiet_child() -> Iterator[int | None]:
    """Start it and yield its pid; None if it is not ready in time. Raises OSError if it cannot
    start.
    """
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WAIT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        confine(child.pid)
        ready, _, _ = select.select([child.stdout], [], [], READY_S)
        yield child.pid if ready else None
    finally:
        child.kill()
        child.stdin.close()
        child.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(READY_S)
