"""Dumps: evidence taken from ranks at one moment. Unlike reports they are sent until acknowledged;
a batch that arrives twice counts once.

A failed dump is a value too: "this rank did not answer while 511 others did" is evidence.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from watchtower.wire.bounds import (
    MAX_CHILDREN,
    MAX_GROUPS,
    MAX_MOUNTS,
    MAX_RANKS_PER_NODE,
    MAX_STACKS,
    MAX_TEXT,
    MAX_THREADS,
    check_age,
    check_count,
    check_integer,
    check_rank,
    check_text,
)
from watchtower.wire.collectives import GroupLog, ProcessGroup, RankCollectives
from watchtower.wire.programs import name_program
from watchtower.wire.report import ProcessState
from watchtower.wire.stacks import Stack


class FailureKind(Enum):
    """Why a dump could not be had."""

    GONE = "gone"
    REFUSED = "refused"
    MISSING_TOOL = "missing_tool"
    TIMEOUT = "timeout"
    UNSUPPORTED = "unsupported"
    TORN = "torn"
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> FailureKind:
        return cls.OTHER


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpFailure:
    """A dump that could not be had, and what a person can do about it."""

    kind: FailureKind
    help_text: str

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_text("help_text", self.help_text, MAX_TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A mounted file system, as /proc/PID/mountinfo describes it."""

    kind: str
    """"nfs4", "fuse.sshfs", "ext4"."""
    source: str
    """"nfs1:/data", "/dev/nvme0n1p1"; a user-space file system names itself as it likes."""
    point: str
    """"/mnt/data", as the process sees it."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_text("kind", self.kind)
        check_text("source", self.source)
        check_text("point", self.point)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelWait:
    """Where the main thread is in the kernel, from /proc/PID/{stat,wchan,syscall}."""

    state: ProcessState = ProcessState.OTHER
    wchan: str = ""
    syscall: str = ""
    """Name of the system call it is in ("read", "futex"); empty when running or not readable."""
    target: str = ""
    """What the call's file descriptor points at ("/mnt/shards/0042.tar", "pipe:[31]",
    "tcp 10.0.0.1:2000 -> 10.0.0.2:3000"); empty when the call has none or it is not readable."""
    tracer_pid: int = 0
    """TracerPid of /proc/PID/status: a debugger holds the process when it is not 0."""
    tracer_name: str = ""
    frozen: bool = False
    """Its cgroup is frozen: no state or call of the process itself tells that for certain."""
    mounts: tuple[Mount, ...] = ()
    """Mounts that a blocked file call may be on: the one of its descriptor. Without a descriptor,
    all mounts with storage that the process sees. Empty if the thread is not in a file call."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_count("mounts", len(self.mounts), MAX_MOUNTS)
        check_text("wchan", self.wchan)
        check_text("syscall", self.syscall)
        check_text("target", self.target, MAX_TEXT)
        check_text("tracer_name", self.tracer_name)
        check_integer("tracer_pid", self.tracer_pid)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadDump:
    """One Python thread."""

    name: str
    digest: str
    main: bool = False
    owns_gil: bool = False
    active: bool = False
    """py-spy's word: on a CPU. False for every blocked thread, one that holds the GIL included."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_text("name", self.name)
        check_text("digest", self.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildDump:
    """A child process of a rank, such as a DataLoader worker."""

    pid: int
    kernel: KernelWait
    command: str = ""
    """Name of its program ("rsync", "python3 -m package.module"), never an argument."""
    threads: tuple[ThreadDump, ...] = ()
    failure: DumpFailure | None = None

    def __post_init__(self) -> None:
        """Check the bounds, and drop arguments: agents before this release sent them."""
        check_text("command", self.command)
        object.__setattr__(self, "command", name_program(self.command.split()))
        check_integer("pid", self.pid)
        check_count("threads", len(self.threads), MAX_THREADS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDump:
    """Evidence from one rank's process at one moment."""

    rank: int
    pid: int
    start_time: int
    kernel: KernelWait
    step: int = -1
    """Step on the page when the dump was taken; -1 when unknown."""
    threads: tuple[ThreadDump, ...] = ()
    children: tuple[ChildDump, ...] = ()
    failure: DumpFailure | None = None
    """Set when there are no Python stacks; the kernel's words may still be there."""
    collectives: RankCollectives | None = None
    """Null when the process keeps no records that are known."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_rank(self.rank)
        check_integer("pid", self.pid)
        check_integer("start_time", self.start_time)
        check_integer("step", self.step, low=-1)
        check_count("threads", len(self.threads), MAX_THREADS)
        check_count("children", len(self.children), MAX_CHILDREN)


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpBatch:
    """One round of dumps of a node's ranks of one job. Posted to `/ingest/v1/dumps`."""

    version: int
    id: str
    """Unique; a batch that arrives twice is stored once."""
    node: str
    job: str
    round: int
    """1 or 2: two rounds a second apart tell stuck from slow."""
    reason: str
    """"deadline" when the agent acted by itself, else the id of the order."""
    held_s: float
    """Seconds between taking the dumps and sending this message."""
    ranks: tuple[RankDump, ...]
    stacks: tuple[Stack, ...]
    groups: tuple[ProcessGroup, ...] = ()
    """Every group that one of `group_logs` is of."""
    group_logs: tuple[GroupLog, ...] = ()
    glance: bool = False
    """A sample, see the order's field: soft state that is not stored."""
    owner: str = ""
    """Whose job, as in the report. Empty from an agent that knows no owners."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_text("id", self.id)
        check_text("node", self.node)
        check_text("job", self.job)
        check_text("owner", self.owner)
        check_text("reason", self.reason)
        check_age("held_s", self.held_s)
        check_integer("round", self.round)
        check_count("ranks", len(self.ranks), MAX_RANKS_PER_NODE)
        check_count("stacks", len(self.stacks), MAX_STACKS)
        check_count("groups", len(self.groups), MAX_GROUPS)
        check_count("group_logs", len(self.group_logs), MAX_GROUPS)


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A batch of dumps and the body of the message that it came in.

    The body is what is stored, and what the diagnosis reads: its process has no part in the fleet.
    """

    batch: DumpBatch
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpReceipt:
    """Answer to a batch: from here on the tower keeps it, through a crash too."""

    id: str
