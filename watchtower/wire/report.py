"""The report: the state of one node's ranks, which its agent sends once a second.

A report is soft state. It is never stored or sent again: its ages would be wrong later. A lost
report costs nothing. The agent repeats an ended rank for a while, so that a tower that has just
started learns about it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from watchtower.wire.bounds import (
    AGE,
    INTEGER,
    MAX_INTEGER,
    MAX_RANKS_PER_NODE,
    MAX_WORLD_SIZE,
    NAME,
    RANK,
    RATE,
    TEXT,
    above_zero,
    between,
    both,
    bounded,
    entries,
    every,
    integer,
    named,
    optional,
)
from watchtower.wire.configuration import MAX_WANTED, Configuration
from watchtower.wire.observations import MAX_OBSERVATIONS, Observation

CHECKPOINT = "checkpoint"
"""A phase with this word in its name is a checkpoint."""

EXIT_PHASE = "exit"
"""Phase of a rank whose program has finished and whose process has not ended yet: the interpreter
shuts down. The agent sets it, because the program cannot."""

LINE_END = " | "
"""Between two lines of the message of an exception, so that the message is one line of text."""


class ProcessState(Enum):
    """Scheduler state of a process: the letter in field 3 of /proc/PID/stat (proc(5))."""

    # Hash the singleton, in C. Enum hashes the name in Python, and a case hashes each many times.
    __hash__ = object.__hash__

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
    """How a process ended, as far as its node knows. UNKNOWN is not a clean exit."""

    EXIT = "exit"
    SIGNAL = "signal"
    UNKNOWN = "unknown"
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> EndingKind:
        return cls.OTHER


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    age_s=AGE,
    phase_age_s=AGE,
    interval_s=AGE,
    phase=NAME,
    exception_type=NAME,
    exception_text=TEXT,
    step=integer(-1),
    advanced=INTEGER,
)
class Beat:
    """Contents of a rank's heartbeat file, with ages at the moment of the report."""

    step: int
    """Last step; -1 if the heartbeat file exists and contains no step yet."""
    age_s: float
    """Seconds since the last heartbeat. While `step` is -1: since the file was created."""
    phase: str = ""
    """Innermost open phase, empty in plain training. `EXIT_PHASE` after the end of the program."""
    phase_age_s: float = 0.0
    advanced: int = 0
    """Steps made since the agent's previous report."""
    interval_s: float = 0.0
    """Mean seconds per step over `advanced` steps; 0 if there were none. It comes from the times in
    the heartbeat file, and is at most the time that passed on the agent's clock."""
    loss_is_bad: bool = False
    """The training loop reported a NaN or infinite loss."""
    exception_type: str = ""
    """Type of an uncaught exception that the heartbeat file records after the last heartbeat. The
    process still exists: another thread or an exit handler may keep it alive."""
    exception_text: str = ""
    """The lines of that exception's message that carry its meaning, joined by `LINE_END`."""


def lowest_step(beats: Iterable[Beat | None]) -> int:
    """Return the lowest step that every rank with heartbeats has made, -1 before the first.

    A None is a rank without heartbeats. It does not count.
    """
    return min((beat.step for beat in beats if beat is not None), default=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(cpu_cores=RATE, write_bytes_per_s=RATE, read_bytes_per_s=RATE, socket_bytes_per_s=RATE)
class Movement:
    """Activity of a rank's process tree since the agent's previous report."""

    cpu_cores: float = 0.0
    """CPU seconds per second, summed over the rank and its live children."""
    write_bytes_per_s: float = 0.0
    """Bytes that the whole tree sent to storage (write_bytes of /proc/PID/io)."""
    read_bytes_per_s: float = 0.0
    """Bytes that the whole tree read from storage (read_bytes of /proc/PID/io)."""
    io_readable: bool = True
    """False if the agent cannot read /proc/PID/io. The two byte rates are then unknown."""
    socket_bytes_per_s: float = 0.0
    """Bytes that the whole tree sent and received over TCP. If it has its own network namespace:
    over all interfaces of the namespace. Measured while the rank is late or has no heartbeat file,
    else 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    age_s=AGE,
    raised_before_s=AGE,
    code=optional(integer(-MAX_INTEGER)),
    exception_type=NAME,
    exception_text=TEXT,
)
class Ending:
    """How a rank's process ended. Every report repeats it until the agent drops the rank."""

    kind: EndingKind
    age_s: float
    """Seconds since the process ended."""
    code: int | None = None
    """EXIT: the exit code. SIGNAL: the signal number. Else null."""
    exception_type: str = ""
    """Type of the uncaught exception in the heartbeat file; empty if none is known."""
    exception_text: str = ""
    """The lines of that exception's message that carry its meaning, joined by `LINE_END`."""
    oom_killed: bool = False
    """The kernel killed it because memory ran out (from the cgroup or the kernel log)."""
    raised_before_s: float = 0.0
    """Seconds from the exception to the end of the process; 0 if that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    job=named("a rank needs the name of its job"),
    owner=NAME,
    launch=NAME,
    role=NAME,
    wchan=NAME,
    rank=RANK,
    world_size=optional(between(1, MAX_WORLD_SIZE)),
    found_age_s=AGE,
    blocked_s=AGE,
    pid=INTEGER,
    start_time=INTEGER,
    local_rank=optional(INTEGER),
    restart_count=optional(INTEGER),
    configuration=NAME,
)
class RankVitals:
    """One process that is (or was) a rank. (pid, start_time) identifies the process."""

    job: str
    """The job's name, from the process or its launcher."""
    rank: int
    pid: int
    """Process id in the host's process namespace."""
    start_time: int
    """Field 22 of /proc/PID/stat: clock ticks since boot."""
    owner: str = ""
    """Owner of the process, from the kernel and the node's root: "uid:1000", "namespace:team-a".
    Jobs of the same name with different owners are different jobs. Empty from an agent that does
    not send owners."""
    launch: str = ""
    """Id of its launch in `Report.launches`. Empty from an agent that does not send launches."""
    launched: bool = False
    """Its parent is a launcher, or also started other ranks of this job on this node."""
    world_size: int | None = None
    local_rank: int | None = None
    role: str = ""
    """What the process is in a job whose members are not all alike, such as "Worker_TP1". Empty for
    ranks that their launcher has numbered. It is only displayed."""
    restart_count: int | None = None
    """TORCHELASTIC_RESTART_COUNT, which torchrun counts per node. Only displayed, never a key."""
    found_age_s: float = 0.0
    """Seconds since the agent first found this process as a rank."""
    beat: Beat | None = None
    """Null if the process has no heartbeat file."""
    state: ProcessState = ProcessState.OTHER
    """State of the main thread. STOPPED and TRACED: state of the whole process."""
    wchan: str = ""
    """Kernel function in which the main thread sleeps; empty if it runs or is not readable."""
    movement: Movement = Movement()
    blocked_s: float = 0.0
    """Seconds in which the main thread did not run at all, while the rank has made no step. 0 if
    it ran since the last report, or if that is not known."""
    ended: Ending | None = None
    configuration: str = ""
    """Digest of its configuration; empty if the agent has not read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(pid=INTEGER, start_time=INTEGER)
class ProcessId:
    """Identifies a process of one node, even if its pid is used again."""

    pid: int
    start_time: int


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    id=named("a launch needs an id"),
    launcher=NAME,
    rendezvous=NAME,
    network=NAME,
    scheduler_id=NAME,
    run_id=NAME,
)
class Launch:
    """What an agent knows about one start of ranks on its node. A text is empty if it is not known.

    Two launches may have one name of a job: they are one job, its attempts, or two jobs. The tower
    decides. All texts are untrusted.
    """

    id: str
    """Names the launch on this node, together with the name and owner of its job."""
    launcher: str = ""
    """The process that started its ranks: its pid and start time, as "4711 88123"."""
    rendezvous: str = ""
    """Where its ranks meet, such as "node1:29500". Ranks that meet are one job."""
    network: str = ""
    """The network namespace of a rendezvous that only this machine can reach; else empty."""
    scheduler_id: str = ""
    """Id of the scheduler's job, such as "slurm 4711"."""
    run_id: str = ""
    """A unique id of the run, such as torchrun's `--rdzv-id`."""


LABELS = ("scheduler", "scheduler_id", "name", "user", "partition", "namespace")


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(job=NAME, owner=NAME, launch=NAME, **dict.fromkeys(LABELS, NAME))
class JobLabels:
    """Labels of a job from the environment of its ranks. The labels are untrusted: they are only
    displayed, and no decision depends on them. A label is empty if the environment has none."""

    job: str
    owner: str = ""
    """As in `RankVitals`."""
    launch: str = ""
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

    def known(self) -> dict[str, str]:
        """Return the labels that are not empty, by name."""
        return {name: value for name in LABELS if (value := getattr(self, name))}


KERNEL_LOG_GAP = "kernel log: "
"""Begin of the sentence in `AgentGaps.collectors` about missing lines of the kernel log."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    python_stacks=TEXT,
    process=TEXT,
    spool=TEXT,
    owners=TEXT,
    collectors=TEXT,
    native_places=TEXT,
)
class AgentGaps:
    """Limitations of this agent, as sentences for `/readyz` and a verdict's missing evidence."""

    python_stacks: str = ""
    """Why py-spy cannot dump on this node; empty if it can."""
    process: str = ""
    """The parts of /proc that the agent cannot read; empty if it can read all."""
    spool: str = ""
    """Why the spool does not preserve dumps if the agent ends; empty if it does."""
    owners: str = ""
    """Why the owner of some ranks may be wrong; else empty."""
    collectors: str = ""
    """Limits of the collectors of GPUs and kernel, with their reasons; else empty."""
    native_places: str = ""
    """Why running threads cannot be sampled on this node; empty if they can."""

    def sentences(self) -> tuple[str, ...]:
        """Return the sentences that are not empty."""
        every = (self.python_stacks, self.process, self.spool, self.owners)
        return tuple(filter(None, (*every, self.collectors, self.native_places)))


MAX_UNWATCHED = 32
"""Entries of `Report.unwatched`. One entry counts all processes of one reason, owner and job."""

MAX_UNWATCHED_PIDS = 8
"""Processes that one entry names. The entry counts the others."""

OVER_LIMIT = "over_limit"
"""The reason of processes that exceed a limit, of an agent or of the tower."""

OTHER_REASONS = "other"
"""The reason of an entry that counts the processes of all entries left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    reason=NAME,
    owner=NAME,
    job=NAME,
    count=integer(1),
    pids=both(entries(MAX_UNWATCHED_PIDS), every(INTEGER)),
    text=TEXT,
)
class Unwatched:
    """Processes of a node that seem to be ranks and that its agent does not watch."""

    reason: str
    """A short word in lower case for metrics and grouping: `OVER_LIMIT`, "wrong_rank", ..."""
    owner: str
    """As in `RankVitals`; empty if it is not known."""
    job: str
    """The job's name; empty if it is not known."""
    count: int
    pids: tuple[int, ...]
    """The first of the processes, in the host's process namespace."""
    text: str
    """A sentence for people: what is not watched, why, and what to do."""


MAX_WAITING = 64
"""Entries of `Report.waiting`. A node has one launcher of a job, and a few jobs."""

MAX_NODES = 65_536
"""Most nodes that a launcher waits for."""


FOR_NODES, FOR_HEAD, FOR_RANKS = "nodes", "head", "ranks"
"""What a launcher waits for: that the launchers of all nodes meet; a node that all others join;
ranks that it starts on other nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    job=named("a launcher needs the name of its job"),
    owner=NAME,
    launcher=NAME,
    pid=INTEGER,
    start_time=INTEGER,
    waits_s=AGE,
    nodes=between(1, MAX_NODES),
    most_nodes=between(1, MAX_NODES),
    node_list=TEXT,
    endpoint=NAME,
    run_id=NAME,
    waits_for=NAME,
    ended=TEXT,
    processes=between(0, MAX_RANKS_PER_NODE),
)
class WaitingLauncher:
    """A launcher that has no ranks: it waits for other nodes, or has ended.

    All texts are untrusted.
    """

    job: str
    """The name that its ranks will give to the job."""
    launcher: str
    """"torchrun", "mpirun", "ray start"."""
    pid: int
    start_time: int
    waits_s: float
    """Seconds since it was started."""
    owner: str = ""
    """As in `RankVitals`."""
    nodes: int = 1
    """The least number of nodes with which it starts its ranks."""
    most_nodes: int = 1
    node_list: str = ""
    """The nodes that the scheduler gave to the job, as the scheduler writes them: "n[1-4,7]"."""
    endpoint: str = ""
    """Where the launchers meet: "node1:29500"."""
    run_id: str = ""
    """As in `Launch`."""
    waits_for: str = FOR_NODES
    """`FOR_NODES`, `FOR_HEAD` or `FOR_RANKS`. Later releases may add kinds."""
    ended: str = ""
    """Why it has ended, as far as its node shows; empty while it waits."""
    processes: int = 0
    """Ranks that it will start on this node; 0 if that is not known."""


MAX_INTERVAL_S = 3600
"""Most seconds between two reports of an agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    node=named("a report needs the name of its node"),
    agent_id=NAME,
    boot=NAME,
    release=NAME,
    interval_s=above_zero(MAX_INTERVAL_S),
    ranks=entries(MAX_RANKS_PER_NODE),
    gone=entries(MAX_RANKS_PER_NODE),
    jobs=entries(MAX_RANKS_PER_NODE),
    observations=entries(MAX_OBSERVATIONS),
    launches=entries(MAX_RANKS_PER_NODE),
    unwatched=entries(MAX_UNWATCHED),
    waiting=entries(MAX_WAITING),
    configuration=NAME,
    bodies=entries(MAX_WANTED),
)
class Report:
    """The state of one node now. Posted to `/ingest/v1/report` every `interval_s` seconds."""

    version: int
    node: str
    agent_id: str
    """Random for each agent run. It distinguishes a restarted agent from a second agent with the
    same node name."""
    interval_s: float
    ranks: tuple[RankVitals, ...] = ()
    limits: AgentGaps = AgentGaps()
    jobs: tuple[JobLabels, ...] = ()
    """Jobs on this node whose labels are known."""
    gone: tuple[ProcessId, ...] = ()
    """The processes that the tower asked for (`ReportReply.missing`) and that do not exist. How
    they ended is not known."""
    contained: bool = False
    """The agent sees only the processes of its own container (pid namespace)."""
    boot: str = ""
    """Identifies the boot of the node's kernel; empty if the agent does not know it. An agent of
    another boot cannot report about the same processes."""
    stopping: bool = False
    """This is the agent's last report: the next agent of the node may report its ranks at once."""
    observations: tuple[Observation, ...] = ()
    """All recent observations of the node. A later report replaces them."""
    release: str = ""
    """Release of the agent."""
    launches: tuple[Launch, ...] = ()
    """The launches of `ranks`."""
    unwatched: tuple[Unwatched, ...] = ()
    """The processes that seem to be ranks and are not in `ranks`, by reason, owner and job."""
    waiting: tuple[WaitingLauncher, ...] = ()
    """Launchers on this node that have no ranks."""
    configuration: str = ""
    """Digest of the configuration of the node."""
    bodies: tuple[Configuration, ...] = ()
    """The configurations that the tower asked for (`ReportReply.wanted`)."""
