"""Dumper: torch's log of a process's collectives, read through the process's socket.

A C++ thread of the process answers in a millisecond. It answers also while the GIL is held and
while the process is in uninterruptible sleep. A stopped or frozen process is not asked, because it
cannot answer.
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
"""Seconds for all requests to one process. An answer needs 1 ms, with a full ring 27 ms."""

HANDLERS = (("gloo", "fr_trace_json"), ("nccl", "dump_nccl_trace_json"))
"""Recorder and its handler. Torch has one for each kind of library; without NCCL the second handler
does not exist.
"""

LATE = "no time was left to read the process's collective log"
STOPPED = "the process's collective log cannot be read while the process is stopped"
FROZEN = "the process's collective log cannot be read while the process is frozen"
SILENT = (
    f"the process did not return its collective log within {RECORDS_DEADLINE_S:g} s: the thread "
    "that answers gets no CPU or has ended, or a forked worker of a dead process has the socket"
)
REFUSED = (
    "the agent may not connect to the process's collective-record socket: run the agent with "
    "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH; the socket must be open to all users (mode 0666)"
)
MISSING = (
    "the process's collective-record socket does not exist any more: it was removed, or its "
    "folder is hidden from the agent"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The records of a process, by recorder, and why some are missing."""

    records: tuple[tuple[str, TorchRecords], ...] = ()
    failure: str = ""
    """A sentence with what to do; empty if nothing is missing."""


def ask_recorders(
    proc: Proc, pid: int, path: str, kernel: KernelWait, round_deadline: float
) -> Asked:
    """Ask the recorders of one process. This takes at most one second."""
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
    """Return what failed and what to do about it."""
    if isinstance(error, SocketRefused):
        return (
            f"the collective-record socket that the process names is not used, because {error}: it "
            "must be a socket of the process's own, on a local file system"
        )
    if isinstance(error, BadRecords):
        return (
            f"the process's collective log is not understood ({error}): a newer agent may "
            "support this version of torch"
        )
    if isinstance(error, NoAnswer):
        return f"the collective-record socket of the process is not torch's own: {error}"
    if isinstance(error, TimeoutError | BlockingIOError):
        return SILENT
    if isinstance(error, PermissionError):
        return REFUSED
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return MISSING
    return f"cannot read the process's collective log: {error}"
