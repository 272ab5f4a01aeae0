"""Who traces a process, and that a tool of this agent does not count.

py-spy stops a process for a moment to read its native functions. A report or a dump of this moment
must not show the process as held by a debugger.
"""

from __future__ import annotations

import os

from agent.procfs import Proc, parse_fields, parse_stat
from watchtower.wire.report import ProcessState


def find_tracer(proc: Proc, pid: int) -> int:
    """Return the pid of the process that traces a process; 0 without one.

    A tracer in an outer pid namespace is also 0.
    """
    text = parse_fields(proc.try_read(pid, "status", 8192)).get("TracerPid", "0")
    return int(text) if text.isdigit() else 0


def find_foreign_tracer(proc: Proc, pid: int) -> int:
    """Return the pid of the process that traces a process; 0 if it is a tool of this agent."""
    tracer = find_tracer(proc, pid)
    return 0 if tracer and _is_own(proc, tracer) else tracer


def see_past_own_tools(proc: Proc, pid: int, state: ProcessState) -> ProcessState:
    """Return the state that was read, or OTHER if a tool of this agent stops the process now."""
    if state is not ProcessState.TRACED:
        return state
    tracer = find_tracer(proc, pid)
    if tracer:
        return ProcessState.OTHER if _is_own(proc, tracer) else state
    # The tracer has just gone, or it is in an outer pid namespace and still holds the process.
    stat = parse_stat(proc.try_read(pid, "stat", 4096))
    return ProcessState(stat.state) if stat is not None else ProcessState.GONE


def _is_own(proc: Proc, tracer: int) -> bool:
    """Return whether a process was started by this one. `self` is this process in any mounted
    /proc, whatever its pid namespace."""
    stat = parse_stat(proc.try_read(tracer, "stat", 4096))
    try:
        return stat is not None and stat.ppid == int(os.readlink(f"{proc.path}/self"))
    except (OSError, ValueError):
        return False
