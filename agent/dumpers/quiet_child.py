"""A Python process of the agent's own that only waits: what py-spy is tried on.

The agent itself is no such process: its threads run, and a dump without stopping it may fail.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
from collections.abc import Iterator

from agent.dumpers.tool_limits import confine

READY_S = 3.0
"""It starts in 20 ms."""

_WAIT = "print(flush=True); input()"
"""Ends with its parent, whose end of the pipe is closed then."""


@contextlib.contextmanager
def quiet_child() -> Iterator[int | None]:
    """Start it; yield its process id, None if it is not ready in time. OSError: it cannot start."""
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WAIT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        process_group=0,
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
