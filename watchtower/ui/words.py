"""Words and numbers of several pages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime

from watchtower.core.text import clean
from watchtower.wire.verdict import Cause, Status

_TONES = {
    Status.HUNG: "bad",
    Status.SUSPECT: "warn",
    Status.SLOW: "warn",
    Status.MONITORING_LOST: "warn",
    Status.RECOVERED: "good",
    Status.HEALTHY: "good",
}

_SEVERITY = (
    Status.HUNG,
    Status.SUSPECT,
    Status.MONITORING_LOST,
    Status.SLOW,
    Status.SUSPENDED,
    Status.RECOVERED,
    Status.HEALTHY,
    Status.ENDED,
)
"""All statuses, the worst first."""


def find_tone(status: Status) -> str:
    """Return the class of the colour of a status: "bad", "warn", "good" or "over"."""
    return _TONES.get(status, "over")


def rank_severity(status: Status) -> int:
    """Return a number that is lower for a worse status."""
    return _SEVERITY.index(status)


def stamp(wall: float | None) -> str | None:
    """Return UNIX seconds as RFC 3339 in whole seconds, as pages and verdicts show them."""
    if wall is None:
        return None
    return f"{datetime.fromtimestamp(math.floor(wall), UTC):%Y-%m-%dT%H:%M:%SZ}"


def format_step_time(seconds: float) -> str:
    """Return "1.2 s a step"; empty if it is not known. Two digits, so that it seldom changes."""
    if seconds <= 0:
        return ""
    return f"{seconds:.2g} s a step" if seconds < 100 else f"{seconds:.0f} s a step"


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
    Cause.NEVER_STARTED: "ranks were not started",
    Cause.INIT_STUCK: "still in set-up while the others wait",
    Cause.MISCONFIGURED: "a setting that cannot work",
    Cause.DATALOADER_STALL: "waiting for input data",
    Cause.CHECKPOINT_STALL: "stuck while it writes a checkpoint",
    Cause.NETWORK_WAIT: "waiting for a service outside the job",
    Cause.LOCK_DEADLOCK: "waiting for a lock",
    Cause.GIL_HELD: "native code holds the Python interpreter lock (GIL)",
    Cause.BUSY_LOOP: "computes and makes no step",
    Cause.UNEVEN_INPUTS: "ranks have different numbers of batches",
    Cause.CONDITIONAL_COLLECTIVE: "a collective that not all ranks call",
    Cause.MISMATCHED_COLLECTIVE: "collectives that do not match",
    Cause.COLLECTIVE_CYCLE: "ranks wait for each other in a cycle",
    Cause.MISSING_SEND: "a message was not sent",
    Cause.BEHIND_COLLECTIVE: "has not entered the collective of the others",
    Cause.FABRIC_FAULT: "a fault of the network between the ranks",
    Cause.SYMMETRIC_HANG: "all ranks wait in the same collective",
    Cause.STRAGGLER: "slower than the other ranks",
    Cause.JOB_SLOW: "all ranks are slower than before",
    Cause.UNKNOWN: "cause not known",
}
"""Words that a person reads instead of the name of a cause. Each completes "94 % sure: ..."."""


def format_cause(cause: Cause | str) -> str:
    """Return a cause in plain words."""
    return CAUSES[Cause(cause)]


def format_name(name: str) -> str:
    """Return the name of a status as words: "monitoring lost"."""
    return clean(name, 64).replace("_", " ")


def format_percent(share: float) -> str:
    """Return "97 %". No verdict is certain, so the largest number is 99."""
    return f"{min(int(share * 100 + 0.5), 99)} %"


def count(number: int, word: str) -> str:
    """Return "1 node" or "7 nodes"."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def list_labels(labels: Mapping[str, str]) -> list[str]:
    """Return the labels of a job in short: "slurm 48213", "alice", "train"."""
    ident = labels.get("scheduler_id", "")
    scheduled = f"{labels.get('scheduler', '')} {ident}".strip() if ident else ""
    rest = (labels.get(name, "") for name in ("name", "user", "partition", "namespace"))
    return list(dict.fromkeys(filter(None, (scheduled, *rest))))
