"""The report: what one node's agent says of its ranks, once a second.

Everything here is soft state. A lost report costs nothing, a late one would lie (its ages would be
wrong), so reports are never stored or sent again. An ended rank stays in the reports for a while,
so that a tower which just started learns of it too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from watchtower.wire.bounds import (
    MAX_INTEGER,
    MAX_RANKS_PER_NODE,
    MAX_TEXT,
    MAX_WORLD_SIZE,
    check_age,
    check_count,
    check_integer,
    check_rank,
    check_rate,
    check_text,
)


class ProcessState(Enum):
    """Scheduler state of a process: the letter in field 3 of /proc/PID/stat (proc(5))."""

    RUNNING = "R"
    SLEEPING = "S"
    UNINTERRUPTIBLE = "D"
    STOPPED = "T"
    TRACED = "t"
    ZOMBIE = "Z"
    IDLE = "I"
    GONE = "X"
    OTHER = "?"

    @classmethod
    def _missing_(cls, value: object) -> ProcessState:
        return cls.OTHER


class EndingKind(Enum):
    """How a process ended, as far as its node can tell. UNKNOWN is not a clean exit."""

    EXIT = "exit"
    SIGNAL = "signal"
    UNKNOWN = "unknown"
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> EndingKind:
        return cls.OTHER


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """Last words on a rank's heartbeat page, as ages at the moment the report was made."""

    step: int
    """Last step beaten; -1 while the page exists but no step was beaten yet."""
    age_s: float
    """Seconds since the last beat, or since the page was made while `step` is -1."""
    phase: str = ""
    """Innermost open phase, empty in plain training."""
    phase_age_s: float = 0.0
    advanced: int = 0
    """Steps beaten since the agent's previous report."""
    interval_s: float = 0.0
    """Mean seconds per step over `advanced` steps, 0 when none; from the times on the page, but no
    longer than what really passed."""
    loss_is_bad: bool = False
    """The training loop reported a NaN or infinite loss."""
    exception_type: str = ""
    """Type of an exception that nothing caught, if the page tells of one since the last beat while
    the process is still there: a thread, or what runs at exit, may keep it."""
    exception_text: str = ""
    """First line of that exception's message."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_age("age_s", self.age_s)
        check_age("phase_age_s", self.phase_age_s)
        check_age("interval_s", self.interval_s)
        check_text("phase", self.phase)
        check_text("exception_type", self.exception_type)
        check_text("exception_text", self.exception_text, MAX_TEXT)
        check_integer("step", self.step, low=-1)
        check_integer("advanced", self.advanced)


def lowest_step(beats: Iterable[Beat | None]) -> int:
    """Return the lowest step that every rank with heartbeats has made, -1 before the first.

    None stands for a rank without heartbeats, which does not count.
    """
    return min((beat.step for beat in beats if beat is not None), default=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """What a rank's process tree did since the agent's previous report."""

    cpu_cores: float = 0.0
    """CPU seconds per second of the rank and its live children together."""
    write_bytes_per_s: float = 0.0
    """Bytes sent to storage (write_bytes of /proc/PID/io) by the whole tree."""
    read_bytes_per_s: float = 0.0
    """Bytes fetched from storage (read_bytes of /proc/PID/io) by the whole tree."""
    io_readable: bool = True
    """False when /proc/PID/io is closed to the agent: the two byte rates are then unknown."""
    socket_bytes_per_s: float = 0.0
    """Bytes moved over TCP by the whole tree; in a network namespace of its own, over all its
    interfaces. Measured while the rank is late or has no page, else 0."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_rate("cpu_cores", self.cpu_cores)
        check_rate("write_bytes_per_s", self.write_bytes_per_s)
        check_rate("read_bytes_per_s", self.read_bytes_per_s)
        check_rate("socket_bytes_per_s", self.socket_bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A rank's process is gone; repeated in every report until the agent forgets it."""

    kind: EndingKind
    age_s: float
    """Seconds since the process ended."""
    code: int | None = None
    """Exit code for EXIT, signal number for SIGNAL, else null."""
    exception_type: str = ""
    """Type of the uncaught exception, from the page; empty when there was none or none is known."""
    exception_text: str = ""
    """First line of that exception's message."""
    oom_killed: bool = False
    """The kernel killed it for memory (evidence from the cgroup or the kernel log)."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_age("age_s", self.age_s)
        check_integer("code", self.code, low=-MAX_INTEGER)
        check_text("exception_type", self.exception_type)
        check_text("exception_text", self.exception_text, MAX_TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankVitals:
    """One process that is (or was) a rank. (pid, start_time) tells two processes apart."""

    job: str
    """The job's name, as the process or its launcher says it."""
    rank: int
    pid: int
    """Process id as the node's host sees it."""
    start_time: int
    """Field 22 of /proc/PID/stat: clock ticks since boot."""
    owner: str = ""
    """Whose the process is, by the kernel and the node's root: "uid:1000", "namespace:team-a". One
    name of two owners is two jobs. Empty from an agent that knows no owners."""
    launched: bool = False
    """A launcher started it, or the process that started other ranks of this job on this node."""
    world_size: int | None = None
    local_rank: int | None = None
    restart_count: int | None = None
    """TORCHELASTIC_RESTART_COUNT: counted per node by torchrun, shown to people, never a key."""
    found_age_s: float = 0.0
    """Seconds since the agent first saw this process as a rank."""
    beat: Beat | None = None
    """Null when the process has no heartbeat page."""
    state: ProcessState = ProcessState.OTHER
    """State of the main thread; STOPPED and TRACED when the whole process is."""
    wchan: str = ""
    """Kernel function the main thread sleeps in; empty when it runs or may not be read."""
    movement: Movement = Movement()
    ended: Ending | None = None

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_text("job", self.job)
        check_text("owner", self.owner)
        check_text("wchan", self.wchan)
        check_rank(self.rank)
        if not self.job:
            raise ValueError("`job` is empty, a rank needs the name of its job")
        if self.world_size is not None and not 0 < self.world_size <= MAX_WORLD_SIZE:
            raise ValueError(f"`world_size` is {self.world_size}, allowed is 1 to {MAX_WORLD_SIZE}")
        check_age("found_age_s", self.found_age_s)
        check_integer("pid", self.pid)
        check_integer("start_time", self.start_time)
        check_integer("local_rank", self.local_rank)
        check_integer("restart_count", self.restart_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLabels:
    """What the environment of a job's ranks says of the job. Only people read it: it is untrusted,
    and no decision depends on it. Empty where the environment says nothing."""

    job: str
    owner: str = ""
    """As in `RankVitals`."""
    scheduler: str = ""
    """"slurm", "pbs", ..."""
    scheduler_id: str = ""
    """The id of the job in the scheduler."""
    name: str = ""
    """The name of the job in the scheduler."""
    user: str = ""
    partition: str = ""
    """The partition or queue."""
    namespace: str = ""

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_text("job", self.job)
        check_text("owner", self.owner)
        for name in LABELS:
            check_text(name, getattr(self, name))

    def known(self) -> dict[str, str]:
        """Return the labels that are not empty, by name."""
        return {name: value for name in LABELS if (value := getattr(self, name))}


LABELS = ("scheduler", "scheduler_id", "name", "user", "partition", "namespace")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentGaps:
    """What this agent cannot do, as sentences for `/readyz` and a verdict's missing evidence."""

    python_stacks: str = ""
    """Why py-spy cannot dump here; empty when it can."""
    process: str = ""
    """What of /proc is closed to the agent; empty when nothing is."""
    spool: str = ""
    """Why dumps would be lost with the agent although it has a spool; empty when they would not."""
    ranks: str = ""
    """Which ranks the agent leaves out of its reports because there are too many; else empty."""
    owners: str = ""
    """Why the owner of some ranks is not the one that it should be; else empty."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_text("python_stacks", self.python_stacks, MAX_TEXT)
        check_text("process", self.process, MAX_TEXT)
        check_text("spool", self.spool, MAX_TEXT)
        check_text("ranks", self.ranks, MAX_TEXT)
        check_text("owners", self.owners, MAX_TEXT)

    def sentences(self) -> tuple[str, ...]:
        """Return the sentences of the gaps there are."""
        every = (self.python_stacks, self.process, self.spool, self.ranks, self.owners)
        return tuple(filter(None, every))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One node, now. Posted to `/ingest/v1/report` every `interval_s`."""

    version: int
    node: str
    agent_id: str
    """Random per agent run: tells a restarted agent from a second one with the same node name."""
    interval_s: float
    ranks: tuple[RankVitals, ...] = ()
    limits: AgentGaps = AgentGaps()
    jobs: tuple[JobLabels, ...] = ()
    """Jobs on this node of which labels are known."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_text("node", self.node)
        check_text("agent_id", self.agent_id)
        check_count("jobs", len(self.jobs), MAX_RANKS_PER_NODE)
        check_count("ranks", len(self.ranks), MAX_RANKS_PER_NODE)
        if not self.node:
            raise ValueError("`node` is empty, a report needs the name of its node")
        if not 0 < self.interval_s <= 3600:
            raise ValueError(f"`interval_s` is {self.interval_s}, allowed is above 0 to 3600")
