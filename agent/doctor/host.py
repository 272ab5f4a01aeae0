"""Checks of the host: shared memory, limits, clock and mounted file systems."""

from __future__ import annotations

import ctypes
import os
import resource
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from agent.doctor.check import About, Check, Finding, Node, fail, ok, warn
from agent.mounts import find_storage
from watchtower.wire.checks import CheckState

FULL = 0.95
"""Used share of a file system at which the next job may find no room."""

SMALL_SHM = 64 << 20
"""Size of the /dev/shm of a container for which none was chosen. One pair of GPUs uses up to 33 MB
of it."""

_GIB = 1 << 30
SHM_FIX = (
    "remove files that ended jobs have left (`ls -la /dev/shm/nccl-*`); in a container, "
    "`--shm-size` of Docker or an emptyDir with `medium: Memory` at /dev/shm makes it larger"
)


@dataclass(frozen=True, slots=True)
class Room:
    """How full a file system is."""

    size: int
    used: float


def read_room(path: str) -> Room | None:
    """Return how full the file system is; None if that cannot be read. It may hang."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    used = 1 - found.f_bavail / max(found.f_blocks, 1)
    is_read_only = bool(found.f_flag & os.ST_RDONLY)  # an image is always full
    return Room(found.f_blocks * found.f_frsize, 0.0 if is_read_only else used)


def judge_shm(room: Room | None) -> Iterator[Finding]:
    """Yield whether NCCL and data loaders find room in /dev/shm."""
    if room is None or not room.size:
        yield fail("/dev/shm cannot be read", "mount a tmpfs at /dev/shm")
    elif room.size <= SMALL_SHM:
        yield fail(f"/dev/shm has only {room.size >> 20} MiB", SHM_FIX)
    elif room.used >= FULL:
        yield fail(f"/dev/shm is {room.used:.0%} full", SHM_FIX)
    else:
        yield ok(f"{room.size / _GIB:.1f} GiB, {room.used:.0%} used")


FEW_FILES = 4096
"""Open files that a rank may need: connections to all ranks of a group, files of data loaders."""

ENOUGH_MEMLOCK = 32 << 30
"""Bytes of locked memory that count as unlimited. RDMA locks all buffers, some GiB a rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of this process, which its children inherit. A negative number means unlimited."""

    memlock: int
    files: int
    has_rdma: bool


def read_limits(node: Node) -> Limits:
    """Return the limits of this process. Those of a job are the ones of what starts it."""
    return Limits(
        # RDMA uses the soft limit. Programs with many files raise theirs to the hard one.
        memlock=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        has_rdma=os.path.isdir(os.path.join(node.root, "sys/class/infiniband")),
    )


def judge_limits(limits: Limits) -> Iterator[Finding]:
    """Yield which limits end a job, as inherited by what this process starts."""
    found = []
    if limits.has_rdma and 0 <= limits.memlock < ENOUGH_MEMLOCK:
        text = f"memlock is {limits.memlock >> 10} KiB, and InfiniBand and RoCE lock all buffers"
        fix = (
            "`LimitMEMLOCK=infinity` in the unit that starts jobs (slurmd, containerd), "
            "`--ulimit memlock=-1` of Docker"
        )
        found.append(fail(text, fix))
    if 0 <= limits.files < FEW_FILES:
        text = f"nofile is {limits.files}: a rank needs a file for each connection"
        found.append(warn(text, "`LimitNOFILE=1048576` in the unit that starts jobs"))
    memlock = "unlimited" if limits.memlock < 0 else f"{limits.memlock >> 10} KiB"
    files = "unlimited" if limits.files < 0 else str(limits.files)
    yield from found or [ok(f"memlock {memlock}, nofile {files}")]


STA_UNSYNC = 0x0040
LARGE_ERROR_US = 1_000_000
"""Largest error of the clock, as the kernel estimates it, at which logs of several nodes can still
be compared."""

CLOCK_FIX = "start a time service (chrony, systemd-timesyncd); `timedatectl` shows its state"
_TIMEX_WORDS = 32


def read_clock(_: Node) -> tuple[int, int] | None:
    """Return the status of the clock and its largest error in microseconds (adjtimex(2))."""
    # struct timex begins with: modes, offset, freq, maxerror, esterror, status.
    words = (ctypes.c_long * _TIMEX_WORDS)()
    try:
        if ctypes.CDLL(None).adjtimex(ctypes.byref(words)) < 0:
            return None
    except (OSError, AttributeError):
        return None
    return words[5] & 0xFFFFFFFF, words[3]


def judge_clock(clock: tuple[int, int] | None) -> Iterator[Finding]:
    """Yield whether a time service keeps the clock."""
    if clock is None:
        yield ok("its state cannot be read here")
        return
    status, error_us = clock
    if status & STA_UNSYNC:
        yield warn("no time service keeps the clock of this node", CLOCK_FIX)
    elif error_us > LARGE_ERROR_US:
        yield warn(f"it may be wrong by {error_us / 1e6:.1f} s", CLOCK_FIX)
    else:
        yield ok(f"kept by a time service, error below {max(error_us, 1000) / 1000:.0f} ms")


MOUNT_S = 3.0
"""Seconds that a file system has to answer. One in good health needs microseconds, and a file
server of a busy cluster some milliseconds."""


@dataclass(frozen=True, slots=True)
class Mounted:
    """A mounted file system with storage."""

    kind: str
    point: str
    room: Room | None
    answers: bool = True


def read_mounts(node: Node) -> list[Mounted] | None:
    """Return all file systems with storage; None if there are too many. Each has a thread: one
    that hangs does not hold up the others.
    """
    table = node.proc.try_read(os.getpid(), "mountinfo")
    found = find_storage(table)
    if not found and table:
        return None if b" - " in table else []
    rooms: dict[str, Room | None] = {}
    threads = []
    for each in found:
        read = threading.Thread(target=_fill, args=(each.point, rooms), daemon=True)
        read.start()
        threads.append(read)
    for read in threads:
        read.join(node.left(MOUNT_S))
    answered = dict(rooms)
    return [
        Mounted(each.kind, each.point, answered.get(each.point), each.point in answered)
        for each in found
    ]


def _fill(point: str, rooms: dict[str, Room | None]) -> None:
    rooms[point] = read_room(point)


def judge_mounts(mounts: Iterable[Mounted] | None) -> Iterator[Finding]:
    """Yield which file systems do not answer, or are full."""
    if mounts is None:
        yield ok("not checked: no file system with storage, or more than are checked")
        return
    found: list[Finding] = []
    answering = 0
    for each in mounts:
        if not each.answers:
            text = f"{each.point} ({each.kind}) did not answer in {MOUNT_S:.0f} s"
            fix = f"check its server; `findmnt {each.point}` names it; unmount it with `umount -l`"
            found.append(fail(text, fix))
            continue
        answering += 1
        if each.room is not None and each.room.size and each.room.used >= FULL:
            text = f"{each.point} ({each.kind}) is {each.room.used:.0%} full"
            found.append(warn(text, "remove data, or write checkpoints to another place"))
    yield from found
    if not found:
        yield ok(f"{answering} of {answering} file systems answer")


SHM = Check(
    name="shared memory",
    about=About.NODE,
    read=lambda node: read_room(os.path.join(node.root, "dev/shm")),
    judge=judge_shm,
)
LIMITS = Check(name="limits", about=About.NODE, read=read_limits, judge=judge_limits)
CLOCK = Check(name="clock", about=About.NODE, read=read_clock, judge=judge_clock)
MOUNTS = Check(
    name="mounts",
    about=About.NODE,
    read=read_mounts,
    judge=judge_mounts,
    hangs=Finding(
        CheckState.FAIL, "a file system does not answer", "`findmnt` lists them; check its server"
    ),
)
