"""Which processes that the tower misses in the reports do not exist any more.

An agent that was restarted did not see how the ranks ended that ended while it was away. It can
still see that a process does not exist.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from agent.procfs import Proc, parse_stat
from watchtower.wire.report import ProcessId

_DEAD = ("Z", "X", "x")


def find_gone(
    proc: Proc, missing: Iterable[ProcessId], watched: set[tuple[int, int]]
) -> tuple[ProcessId, ...]:
    """Return the processes of `missing` that have ended and are not in `watched`."""
    return tuple(
        each
        for each in missing
        if (each.pid, each.start_time) not in watched and has_ended(proc, each)
    )


def has_ended(proc: Proc, process: ProcessId) -> bool:
    """Return whether a process has ended. If that is not certain, the result is False."""
    try:
        os.kill(process.pid, 0)  # /proc may hide a process that exists (mount option hidepid)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        pass
    try:
        stat = parse_stat(proc.read(process.pid, "stat", 4096))
    except OSError:
        return False
    if stat is None:
        return False
    return stat.start_time != process.start_time or stat.state in _DEAD
