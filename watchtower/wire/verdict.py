"""The verdict: the tower's conclusion about a job, for people, bots and alerting systems."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    """The tower's conclusion about a job."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    HUNG = "hung"
    SLOW = "slow"
    RECOVERED = "recovered"
    ENDED = "ended"
    SUSPENDED = "suspended"
    MONITORING_LOST = "monitoring_lost"


WORST_FIRST = (
    Status.HUNG,
    Status.SUSPECT,
    Status.MONITORING_LOST,
    Status.SLOW,
    Status.SUSPENDED,
    Status.RECOVERED,
    Status.HEALTHY,
    Status.ENDED,
)
"""All statuses, in the order of every list of jobs: of pages, commands, Slack and metrics."""

TROUBLED = frozenset(WORST_FIRST[:4])
"""A job with one of these needs a person."""

_PLACES = {status.value: float(place) for place, status in enumerate(WORST_FIRST)}


def rank_severity(status: str, is_judged: bool = True) -> float:
    """Return a number that is lower for a worse status.

    A job that is not judged yet comes before healthy ones. A status of another release is last.
    """
    return _PLACES.get(status, len(_PLACES)) if is_judged else _PLACES[Status.HEALTHY.value] - 0.5


class Progress(Enum):
    """Whether a job makes progress. Its status is the conclusion from that."""

    STARTING = "starting"
    """The job has not made its first steps yet."""
    STEPPING = "stepping"
    """The job makes steps. Without heartbeats: its stack samples change."""
    NONE = "none"
    """No step for longer than a few steps take, or steps are not visible."""
    IDLE = "idle"
    """No rank moves, and no rank is known to wait for another rank. The job may wait for work."""


class Cause(Enum):
    """Closed list of causes. `UNKNOWN` has alternatives in order of confidence."""

    NODE_LOST = "node_lost"
    PROCESS_DIED = "process_died"
    OOM_KILLED = "oom_killed"
    EXITED_EARLY = "exited_early"
    EXCEPTION = "exception"
    PROCESS_STOPPED = "process_stopped"
    PROCESS_TRACED = "process_traced"
    UNINTERRUPTIBLE_IO = "uninterruptible_io"
    PROCESS_FROZEN = "process_frozen"
    GPU_FAULT = "gpu_fault"
    GPU_DRIVER_STUCK = "gpu_driver_stuck"
    NEVER_STARTED = "never_started"
    INIT_STUCK = "init_stuck"
    MISCONFIGURED = "misconfigured"
    DATALOADER_STALL = "dataloader_stall"
    CHECKPOINT_STALL = "checkpoint_stall"
    NETWORK_WAIT = "network_wait"
    LOCK_DEADLOCK = "lock_deadlock"
    GIL_HELD = "gil_held"
    BUSY_LOOP = "busy_loop"
    UNEVEN_INPUTS = "uneven_inputs"
    CONDITIONAL_COLLECTIVE = "conditional_collective"
    MISMATCHED_COLLECTIVE = "mismatched_collective"
    COLLECTIVE_CYCLE = "collective_cycle"
    MISSING_SEND = "missing_send"
    BEHIND_COLLECTIVE = "behind_collective"
    FABRIC_FAULT = "fabric_fault"
    SYMMETRIC_HANG = "symmetric_hang"
    STRAGGLER = "straggler"
    JOB_SLOW = "job_slow"
    UNKNOWN = "unknown"


class Domain(Enum):
    """The field whose engineers should be called about a verdict. A closed list."""

    USER_CODE = "user_code"
    """The owner of the job: the cause is in the program or in processes that it started."""
    DATA = "data"
    """The input pipeline and the data sets."""
    STORAGE = "storage"
    NETWORK = "network"
    NODE = "node"
    GPU = "gpu"
    SCHEDULER = "scheduler"
    OPERATOR = "operator"
    """A person or a tool on the node held the process from outside."""
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> Domain:
        return cls.UNKNOWN


MOUNT, NODE, ADDRESS, PLACES = "mount", "node", "address", "places"
"""Kinds of shared causes that this release detects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCause:
    """A mount, node or address that holds up this job and may hold up other jobs, or the jobs of a
    group that hold each other's places."""

    kind: str
    """"mount", "node", "address" or "places". Later releases may add kinds."""
    name: str
    """"nfs1:/data", "gpu-042:/dev/nvme0n1p1", "gpu-042", "10.0.0.9", "job-a, job-b"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """One accused rank."""

    rank: int
    node: str
    cause: Cause
    why: str
    pid: int | None = None
    gpu: int | None = None
    """NVML index; null until the GPU of the process is measured."""
    where: str | None = None
    """"data.py:88 in __next__"; null if no stack shows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One observation on which the verdict is based."""

    source: str
    """"stacks", "process", "heartbeat", "ending", ..."""
    text: str
    ranks: str = ""
    """Rank set, such as "0-6,8"."""
    weight: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A possible cause that was not chosen."""

    cause: Cause
    suspects: tuple[int, ...]
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """A reason why the confidence is not higher."""

    kind: str
    """"no_heartbeats", "presumed", ... A kind keeps its meaning. Later releases may add kinds."""
    text: str
    """Completes the sentence "not certain because ..."."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """An event after the incident opened. It does not change the verdict."""

    at: str
    """RFC 3339: time of the event, at the first of these ranks."""
    ranks: str
    """Rank set; empty for an event of the whole job."""
    text: str
    """"ended by SIGTERM", "attempt 2 began", "node gpu-042 stopped reporting"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillLoss:
    """The losses of a kill of the job now."""

    loses_evidence: bool | None
    """Whether the stacks of some ranks have not arrived. Null if that is not known."""
    lost_steps: int | None
    """Steps since the last checkpoint; null if they are not known."""
    evidence_text: str
    """`loses_evidence` as a sentence."""
    steps_text: str
    """`lost_steps` as a sentence."""
    process_text: str = ""
    """Why a kill may not end a suspect; empty if nothing is known against it."""
    timeout_text: str = ""
    """When the job's own timeout should end it, or should have ended it; empty if not known."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """All that is known, the most important first."""
        texts = (self.evidence_text, self.steps_text, self.process_text, self.timeout_text)
        return tuple(filter(None, texts))


NOT_JUDGED = "not_judged"
"""What metrics and lists show instead of `healthy` while that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotJudged:
    """Why a job is neither known to be healthy nor known to be stalled."""

    text: str
    """What people read instead of "healthy": "starting, not judged yet"."""
    missing: tuple[str, ...]
    """What is missing, as sentences: "no rank has made a step"."""
    until: str | None
    """RFC 3339: when the job is suspect at the latest, if nothing changes. Null if that is not
    known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictEntry:
    """One verdict in the history of an incident."""

    at: str
    """RFC 3339: time of the verdict."""
    cause: Cause
    confidence: float
    suspects: str
    """Rank set."""
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer to the question: which rank hung the job, where and why?"""

    job: str
    generation: int
    status: Status
    summary: str
    """One line, short enough for an alert."""
    incident: str | None = None
    cause: Cause | None = None
    domain: Domain | None = None
    """Whom to call. Null without a diagnosis."""
    confidence: float = 0.0
    suspects: tuple[Suspect, ...] = ()
    waiting: str = ""
    """Rank set: ranks inside the collective that the suspects have not entered."""
    step: int | None = None
    """Lowest step among the ranks with heartbeats; null before the first step."""
    stalled_for_s: float = 0.0
    evidence: tuple[Evidence, ...] = ()
    missing_evidence: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    """Reasons why the confidence is not higher, the strongest first, at most 4. If the cause is
    unknown: reasons why the first alternative is not the cause with certainty."""
    next_steps: tuple[str, ...] = ()
    lasting_steps: tuple[str, ...] = ()
    """Those of `next_steps` that stay useful when the processes of the suspects have ended."""
    opened_at: str | None = None
    diagnosed_at: str | None = None
    aftermath: tuple[Aftermath, ...] = ()
    """Ended ranks and lost nodes after the incident opened, earliest first."""
    progress: Progress | None = None
    """Null if the job has ended or no agent reports it."""
    progress_text: str = ""
    """`progress` as a sentence."""
    not_judged: NotJudged | None = None
    """Null unless the status is `healthy` and that is not known yet."""
    hung_in_s: float | None = None
    """While the status is suspect: seconds until the job counts as hung if nothing changes."""
    hung_because: str = ""
    """While the status is suspect: the reason for `hung_in_s`."""
    shared_cause: SharedCause | None = None
    """Null if no cause is known that other jobs may share. In an incident it does not change after
    the opening, because alerts are grouped by it."""
    shared_with: int = 0
    """Number of other open incidents that have the same shared cause now."""
    collective_timeout_s: float | None = None
    """The job's own timeout of the collective in which its ranks wait; null if the collective log
    does not show it."""
    kill: KillLoss | None = None
    """The losses of a kill. Null unless the job is hung now."""
