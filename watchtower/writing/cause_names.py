"""Causes in plain words, for the sentences of verdicts and for pages."""

from __future__ import annotations

from watchtower.wire.verdict import Alternative, Cause
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import format_percent

CAUSES = {
    Cause.NODE_LOST: "the node stopped reporting",
    Cause.PROCESS_DIED: "the process died",
    Cause.OOM_KILLED: "killed because memory ran out",
    Cause.EXITED_EARLY: "exited before the others",
    Cause.EXCEPTION: "raised an exception",
    Cause.PROCESS_STOPPED: "the process is stopped",
    Cause.PROCESS_TRACED: "a debugger or tracer holds the process",
    Cause.UNINTERRUPTIBLE_IO: "blocked in the kernel, waiting for IO",
    Cause.PROCESS_FROZEN: "the process is frozen by its cgroup",
    Cause.GPU_FAULT: "a fault of the GPU",
    Cause.GPU_DRIVER_STUCK: "the GPU driver does not answer",
    Cause.NEVER_STARTED: "not started",
    Cause.INIT_STUCK: "still in set-up while the others wait",
    Cause.MISCONFIGURED: "a setting that cannot work",
    Cause.DATALOADER_STALL: "waiting for input data",
    Cause.CHECKPOINT_STALL: "stuck while it writes a checkpoint",
    Cause.NETWORK_WAIT: "waiting for a service outside the job",
    Cause.LOCK_DEADLOCK: "waiting for a lock",
    Cause.GIL_HELD: "native code holds the Python interpreter lock (GIL)",
    Cause.BUSY_LOOP: "computes and makes no step",
    Cause.UNEVEN_INPUTS: "different numbers of batches",
    Cause.CONDITIONAL_COLLECTIVE: "a collective that not all ranks call",
    Cause.MISMATCHED_COLLECTIVE: "collectives that do not match",
    Cause.COLLECTIVE_CYCLE: "waiting for each other in a cycle",
    Cause.MISSING_SEND: "a message was not sent",
    Cause.BEHIND_COLLECTIVE: "has not come to the call of the others",
    Cause.FABRIC_FAULT: "a fault of the network between the ranks",
    Cause.SYMMETRIC_HANG: "all ranks wait in the same collective",
    Cause.STRAGGLER: "slower than the other ranks",
    Cause.JOB_SLOW: "all ranks are slower than before",
    Cause.UNKNOWN: "cause not known",
}
"""Words that a person reads instead of the name of a cause. Each completes "94 % sure: ..."."""


STAYS = "stays where it is"
"""Words for `behind_collective` where no rank is in a call."""


def format_cause(cause: Cause | str) -> str:
    """Return a cause in plain words."""
    return CAUSES[Cause(cause)]


def write_candidate(candidate: Alternative, *, is_awaited: bool) -> str:
    """Return "waiting for a lock (rank 3, 45 %)".

    `is_awaited`: some rank is known to wait for others.
    """
    is_behind = candidate.cause is Cause.BEHIND_COLLECTIVE
    words = STAYS if is_behind and not is_awaited else format_cause(candidate.cause)
    ranks = f"{name_ranks(candidate.suspects)}, " if candidate.suspects else ""
    return f"{words} ({ranks}{format_percent(candidate.confidence)})"
