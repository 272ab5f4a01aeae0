"""Dumps: evidence about ranks at one moment.

Unlike a report, a batch of dumps is sent again until the tower acknowledges it. A batch that
arrives twice counts once. A failed dump is also evidence: "this rank did not answer while 511
others did".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from watchtower.wire.bounds import (
    AGE,
    INTEGER,
    MAX_CHILDREN,
    MAX_GROUPS,
    MAX_MOUNTS,
    MAX_RANKS_PER_NODE,
    MAX_STACKS,
    MAX_THREADS,
    NAME,
    RANK,
    TEXT,
    both,
    bounded,
    characters,
    entries,
    every,
    integer,
    optional,
)
from watchtower.wire.collectives import GroupLog, ProcessGroup, RankCollectives
from watchtower.wire.connections import RankNetwork
from watchtower.wire.report import ProcessState
from watchtower.wire.stacks import Stack


class FailureKind(Enum):
    """Why a dump failed."""

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
@bounded(help_text=TEXT)
class DumpFailure:
    """A failed dump, and what a person can do about it."""

    kind: FailureKind
    help_text: str


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(kind=NAME, source=NAME, point=NAME)
class Mount:
    """A mounted file system, as /proc/PID/mountinfo describes it."""

    kind: str
    """"nfs4", "fuse.sshfs", "ext4"."""
    source: str
    """"nfs1:/data", "/dev/nvme0n1p1". A user-space file system chooses this text itself."""
    point: str
    """"/mnt/data", in the mount namespace of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    mounts=entries(MAX_MOUNTS),
    wchan=NAME,
    syscall=NAME,
    target=TEXT,
    tracer_name=NAME,
    tracer_pid=INTEGER,
)
class KernelWait:
    """A thread's place in the kernel, from /proc/PID/task/TID/{stat,wchan,syscall}."""

    state: ProcessState = ProcessState.OTHER
    wchan: str = ""
    syscall: str = ""
    """Name of the current system call ("read", "futex"); empty if the thread runs or the call is
    not readable."""
    target: str = ""
    """Target of the call's file descriptor: "/mnt/shards/0042.tar", "pipe:[31]",
    "tcp 10.0.0.1:2000 -> 10.0.0.2:3000". If the call has no descriptor: a connection of the
    process that is not answered (`wire.sockets`). Empty if there is none, or if the target is not
    readable."""
    tracer_pid: int = 0
    """TracerPid of /proc/PID/status. If it is not 0, a debugger is attached to the process."""
    tracer_name: str = ""
    frozen: bool = False
    """The cgroup of the process is frozen. The state and the call of a process do not show this
    reliably."""
    mounts: tuple[Mount, ...] = ()
    """Mounts that a blocked file call may use. With a descriptor: the mount of the descriptor.
    Without one: all mounts with storage that the process sees. Empty if the thread is not in a file
    call."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(name=NAME, digest=NAME)
class ThreadDump:
    """One Python thread."""

    name: str
    digest: str
    main: bool = False
    owns_gil: bool = False
    active: bool = False
    """py-spy reports the thread as active: it runs on a CPU. False for every blocked thread, also
    for one that holds the GIL."""
    native: NativePlace | None = None
    """Where the thread is in native code. Only of threads for which the main thread may wait; that
    of the main thread is `RankDump.native`."""
    kernel: KernelWait | None = None
    """Where the thread waits in the kernel. Of the same threads; that of the main thread is
    `RankDump.kernel`."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(pid=INTEGER, command=NAME, threads=entries(MAX_THREADS))
class ChildDump:
    """A child process of a rank, such as a DataLoader worker."""

    pid: int
    kernel: KernelWait
    command: str = ""
    """Program name ("rsync", "python3 -m package.module") without arguments."""
    threads: tuple[ThreadDump, ...] = ()
    failure: DumpFailure | None = None


class NativeKind(Enum):
    """The activity of a thread in native code, as far as its libraries show it."""

    # As for `ProcessState`: of the singleton, in C.
    __hash__ = object.__hash__

    PYTHON = "python"
    """It runs Python, or is blocked in a call of the interpreter itself."""
    DEVICE_WAIT = "device_wait"
    """It waits for a device or its collectives, asleep or by polling."""
    COMPILER = "compiler"
    """It compiles for a device."""
    NATIVE = "native"
    """It is in another library, such as numpy or the user's own."""
    GENERATED = "generated"
    """It runs code that was made at run time."""
    LIBC = "libc"
    """It is in the C library, and its caller is not known."""
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> NativeKind:
        return cls.OTHER


MAX_LIBRARIES = 8
"""Libraries of one native stack, innermost first."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    library=NAME,
    thread=NAME,
    libraries=both(entries(MAX_LIBRARIES), every(NAME)),
    run_ns=integer(-1),
    switches=integer(-1),
    ends_in_s=optional(AGE),
)
class NativePlace:
    """Where the training thread of a rank is in native code."""

    kind: NativeKind
    library: str = ""
    """Base name of the library that decided the kind."""
    running: bool = False
    """It used CPU while it was sampled."""
    thread: str = ""
    """Name of the thread if it is not the main thread: "pt_autograd_0"."""
    libraries: tuple[str, ...] = ()
    """The libraries on its stack, innermost first."""
    run_ns: int = -1
    """Nanoseconds that the thread has spent on a CPU since it began; -1 if not known."""
    switches: int = -1
    """Context switches of the thread since it began; -1 if not known. If both numbers are equal in
    two dumps, the thread was blocked all the time between them."""
    ends_in_s: float | None = None
    """Seconds until the call that it is blocked in ends by itself, such as a sleep; null if it may
    never end, or if that is not known."""
    ran_python: bool | None = None
    """Whether the main thread ran Python at some time since the round before; null if it was not
    sampled."""


MAX_SOFTWARE = 16
"""Names with versions of one rank: its libraries that known bugs depend on, and its node's."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(name=NAME, version=NAME)
class Software:
    """The version of a library that a rank uses, or of its node's kernel or machine."""

    name: str
    """"nccl", "cuda driver", "torch"; "linux" and "machine" of the node."""
    version: str
    """"2.27.3", "2.13.0+cpu"; "aarch64" of a machine."""


MAX_SETTINGS = 16
"""Settings of one rank. Agents send seven names."""


MASTER_ADDRESS, MASTER_PORT = "MASTER_ADDR", "MASTER_PORT"
"""Settings with the place where the ranks of a job meet."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(name=NAME, value=NAME)
class Setting:
    """A variable of a rank's environment that must be equal on all ranks of the job."""

    name: str
    """"MASTER_PORT"."""
    value: str


MAX_WRITTEN = 32
"""Places in the output of one rank that readers know: a watchdog writes five lines, and NCCL warns
of one fault in eight."""

MAX_WRITTEN_TEXT = 16_384
"""Characters of the lines of one place: RAS lists the ranks of a communicator in a line each."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(file=TEXT, text=characters(MAX_WRITTEN_TEXT), age_s=AGE)
class WrittenLines:
    """Lines of a file to which a rank writes that a reader knows as evidence. No others are sent,
    and the reader reads them again where the case is made."""

    file: str
    """Path in the mount namespace of the process."""
    text: str
    """The lines without colours and prefixes of progress bars, joined by newlines. Empty if the end
    of its standard error was read, and no reader knows a line of it."""
    age_s: float = 0.0
    """Seconds since they were written, at least."""
    own: bool = True
    """The rank alone writes to this file. Else only the lines themselves show their rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    rank=RANK,
    pid=INTEGER,
    start_time=INTEGER,
    step=integer(-1),
    settings=entries(MAX_SETTINGS),
    threads=entries(MAX_THREADS),
    children=entries(MAX_CHILDREN),
    software=entries(MAX_SOFTWARE),
    written=entries(MAX_WRITTEN),
)
class RankDump:
    """Evidence from one rank's process at one moment."""

    rank: int
    pid: int
    start_time: int
    kernel: KernelWait
    step: int = -1
    """Step in the heartbeat file when the dump was taken; -1 if unknown."""
    threads: tuple[ThreadDump, ...] = ()
    children: tuple[ChildDump, ...] = ()
    failure: DumpFailure | None = None
    """Set if there are no Python stacks. `kernel` may still have values."""
    collectives: RankCollectives | None = None
    """Null if no collective log of the process is known."""
    native: NativePlace | None = None
    """Null if it was not sampled, or the samples did not show it."""
    software: tuple[Software, ...] = ()
    """Empty if it was not read."""
    settings: tuple[Setting, ...] = ()
    """Those that the process has now, also if its program set them. Empty after the first step, or
    if they were not read, as for most stack samples."""
    network: RankNetwork | None = None
    """Null if its sockets were not read, as for a stack sample."""
    watchdog: NativePlace | None = None
    """Where a watchdog thread of torch is blocked in a library of the device; null if none is."""
    written: tuple[WrittenLines, ...] = ()
    """What readers know of its output, oldest first. Empty unless the agent may read output."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    id=NAME,
    node=NAME,
    job=NAME,
    owner=NAME,
    launch=NAME,
    reason=NAME,
    held_s=AGE,
    round=INTEGER,
    ranks=entries(MAX_RANKS_PER_NODE),
    stacks=entries(MAX_STACKS),
    groups=entries(MAX_GROUPS),
    group_logs=entries(MAX_GROUPS),
)
class DumpBatch:
    """One round of dumps from one node of the ranks of one job. Posted to `/ingest/v1/dumps`."""

    version: int
    id: str
    """Unique; a batch that arrives twice is stored once."""
    node: str
    job: str
    round: int
    """1 or 2. Two rounds, a second or more apart, distinguish a stuck rank from a slow one."""
    reason: str
    """"deadline" if a deadline passed on the agent, "end" if its processes have just ended, else
    the id of the order."""
    held_s: float
    """Seconds between taking the dumps and sending this message."""
    ranks: tuple[RankDump, ...]
    stacks: tuple[Stack, ...]
    groups: tuple[ProcessGroup, ...] = ()
    """All groups that `group_logs` refer to."""
    group_logs: tuple[GroupLog, ...] = ()
    sample: bool = False
    """This is a stack sample, see `Order.sample`. Samples are not stored."""
    owner: str = ""
    """Owner of the job, as in the report. Empty from an agent that does not send owners."""
    launch: str = ""
    """Launch of the job on this node, as in the report. Empty from an agent that does not send
    launches."""


@dataclass(frozen=True, slots=True)
class SentBatch:
    """A batch of dumps and the body of the message that it came in.

    The store keeps the body, and the diagnosis reads it: the diagnosing process has no access to
    the fleet.
    """

    batch: DumpBatch
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpReceipt:
    """Answer to a batch: the tower has stored it, and a crash does not lose it."""

    id: str
