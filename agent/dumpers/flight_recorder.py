"""Dumper: the records that torch keeps of a process's collectives, asked over its socket.

A thread of C++ answers in a millisecond, also while the GIL is held and while the process is in
uninterruptible sleep; a stopped or frozen one does not answer, and is not asked.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from agent.dumpers.record_socket import NoAnswer, RecordSocket, SocketRefused
from agent.dumpers.torch_records import BadRecords, TorchRecords, parse_records
from agent.procfs import Proc
from watchtower.wire.dumps import KernelWait
from watchtower.wire.report import ProcessState

RECORDS_DEADLINE_S = 1.0
"""For all that a process is asked of its collective records: an answer takes a millisecond, a full
ring 27."""

HANDLERS = (("gloo", "fr_trace_json"), ("nccl", "dump_nccl_trace_json"))
"""Recorder and the handler that shows it: torch keeps one for each kind of library, and a build
without NCCL has no second handler."""

LATE = "there was no time left to ask the process for its collective records"
STOPPED = "the process cannot answer for its collective records while it is stopped"
FROZEN = "the process cannot answer for its collective records while it is frozen"
SILENT = (
    f"the process did not give its collective records within {RECORDS_DEADLINE_S:g} s: the thread "
    "that answers is starved or gone, or only a forked worker of a dead process holds its socket"
)
REFUSED = (
    "the agent may not connect to the process's collective-record socket: run the agent with "
    "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH; the socket must be open to everybody (mode 0666)"
)
MISSING = (
    "the process's collective-record socket is not there any more: something removed it, or its "
    "folder is hidden from the agent"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the recorders of a process say, by recorder, and why there is not more."""

    records: tuple[tuple[str, TorchRecords], ...] = ()
    failure: str = ""
    """A sentence with what to do; empty when all is here, or when there is nothing to be had."""


def ask_recorders(
    proc: Proc, pid: int, path: str, kernel: KernelWait, round_deadline: float
) -> Asked:
    """Ask the recorders of one process; it takes a second at most, whatever it does."""
    if kernel.state in (ProcessState.ZOMBIE, ProcessState.GONE):
        return Asked()
    if kernel.state in (ProcessState.STOPPED, ProcessState.TRACED):
        return Asked(failure=STOPPED)
    if kernel.frozen:
        return Asked(failure=FROZEN)
    now = time.monotonic()
    if now >= round_deadline:
        return Asked(failure=LATE)
    deadline = min(now + RECORDS_DEADLINE_S, round_deadline)
    found: list[tuple[str, TorchRecords]] = []
    failure = ""
    for recorder, handler in HANDLERS:
        try:
            answer = RecordSocket(pid=pid, path=path).ask(proc, handler, deadline)
            if answer is not None:
                found.append((recorder, parse_records(answer)))
        except (SocketRefused, NoAnswer, BadRecords, OSError) as error:
            failure = failure or explain(error)
    return Asked(records=tuple(found), failure=failure)


def explain(error: Exception) -> str:
    """Say what went wrong, and what to do about it."""
    if isinstance(error, SocketRefused):
        return (
            f"the collective-record socket that the process names is not used, because {error}: it "
            "must be a socket of the process's own, on a local file system"
        )
    if isinstance(error, BadRecords):
        return (
            f"the process's collective records are not understood ({error}): a newer agent may "
            "know what this torch writes"
        )
    if isinstance(error, NoAnswer):
        return f"the collective-record socket of the process is not torch's own: {error}"
    if isinstance(error, TimeoutError | BlockingIOError):
        return SILENT
    if isinstance(error, PermissionError):
        return REFUSED
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return MISSING
    return f"the process's collective records cannot be had: {error}"
