"""Which processes were left behind by their job: a dead launcher does not end all its workers.

Such a process may hold memory of a GPU, so that the next job there runs out of it.
"""

from __future__ import annotations

from agent.procfs import Proc

INIT = 1

_PPID, _SESSION = 1, 3
"""Positions after the command name: the field number in proc(5) minus 3."""


def is_orphan(proc: Proc, pid: int) -> bool:
    """Return whether the parent of a process and the leader of its session have ended.

    A service of systemd has init as its parent, too, but leads its session.
    """
    fields = proc.try_read(pid, "stat", 4096).rpartition(b")")[2].split()
    if len(fields) <= _SESSION or fields[_PPID] != str(INIT).encode():
        return False
    session = int(fields[_SESSION])
    return session not in (0, pid) and proc.stat(session) is None
