"""Collector: the shared memory of the node and of its ranks, /dev/shm.

NCCL and data loaders exchange data there. A library that finds no room is ended by SIGBUS, or stops
with an error that does not name the reason. NCCL's files stay behind when a job is killed.

Only the folder of the node is read: one of a container may be any mount, and reading it may block.
Of a container, only the size is read, from the table of its mounts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from agent.collectors.collector import Collector, name_pid
from agent.procfs import CLOCK_TICKS_PER_S, Proc
from watchtower.service.metric_spec import Sample, gauge
from watchtower.wire.observations import NODE, Observation

USED = gauge("watchtower_shm_used_ratio", "", "Used share of /dev/shm of the node, 0 to 1.")
STALE = gauge(
    "watchtower_shm_stale_bytes",
    "",
    "Bytes of NCCL's files in /dev/shm of the node that ended jobs have left behind.",
)

EVERY_S = 10.0
"""Seconds between two reads."""

FULL = 0.95
"""Smallest used share that is reported."""

PREFIX = "nccl-"
"""Names of NCCL's files begin so."""

STALE_S = 300.0
"""A file of NCCL was left behind if its user had no rank on the node for so long. The agent needs
less time to find the ranks of a job that has just started."""

OLDER_S = 1.0
"""So was one that is older than each rank of its user by this. Ranks begin to use NCCL later."""

KEPT_S = 60.0
"""Seconds for which an observation stays after what it is about has ended: a rank that found no
room ends, and frees what it had."""

SMALL = 64 << 20
"""Largest size of the shared memory of a rank that is reported: that of a container for which none
was chosen. One pair of GPUs uses 4 to 33 MB of it."""

MAX_MOUNTS = 1 << 18
"""Bytes read of the table of mounts of one process. A pod has some dozens of mounts."""

MAX_ENTRIES = 4096
"""Entries of the folder that are read. A rank has some dozens of NCCL's."""

MAX_RANKS = 64
"""Ranks whose users are read. A node has up to 16."""

_GIB = 1 << 30

_MOUNT_POINT = 4
"""Field of a line of mountinfo, see proc(5)."""

_MAX_DIGITS = 16
"""Digits of a size that is read."""


class _Rank(NamedTuple):
    """A process of a rank."""

    start_time: int
    """In ticks since boot: with the pid, this is one process."""
    size: int
    """Bytes of its /dev/shm; 0 if it has that of the node, or one without a limit."""
    seen_at: float


class SharedMemory(Collector):
    """Reads /dev/shm of one root."""

    name = "shared_memory"
    metrics = (USED, STALE)

    def __init__(
        self,
        root: str = "/",
        find_ranks: Callable[[], Iterable[int]] = lambda: (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`find_ranks` returns the pids of the ranks of now, `clock` the time of files."""
        self._path = os.path.join(root, "dev/shm")
        self._proc = Proc(root)
        self._find_ranks = find_ranks
        self._clock = clock
        self._read_at = float("-inf")
        self._used: float | None = None
        self._full: tuple[float, str] | None = None
        """When it was last full, and what was seen then."""
        self._ranks: dict[int, _Rank] = {}
        """By pid."""
        self._unowned: dict[int, float] = {}
        """By inode: since when a file of NCCL belongs to a user without ranks."""
        self._stale: tuple[int, ...] = ()
        """Sizes of the files that were left behind, in bytes."""

    def collect(self, now: float) -> Iterator[Observation]:
        """Return one observation while it is nearly full, and one for each small one of a rank."""
        if now - self._read_at >= EVERY_S:
            self._read_at = now
            self._read_ranks(now)
            self._read(now)
        if self._full is not None and now - self._full[0] <= KEPT_S:
            yield Observation(
                source=self.name,
                subject=NODE,
                name="shm_full",
                age_s=now - self._full[0],
                value=self._used,
                text=self._full[1],
            )
        for pid, rank in self._ranks.items():
            if 0 < rank.size <= SMALL:
                yield Observation(
                    source=self.name,
                    subject=name_pid(pid),
                    name="shm_small",
                    age_s=now - rank.seen_at,
                    value=rank.size,
                    text=f"/dev/shm of its container has only {rank.size >> 20} MiB",
                    pid=pid,
                )

    def samples(self, wall_now: float) -> Iterator[Sample]:
        """Return the used share, and the size of what was left behind."""
        if self._used is not None:
            yield Sample(USED, (), self._used)
            yield Sample(STALE, (), sum(self._stale))

    @property
    def can_read(self) -> bool:
        """Whether the used share is known."""
        return self._used is not None

    @property
    def is_absent(self) -> bool:
        """Whether the node has no /dev/shm."""
        return self._used is None

    def _read(self, now: float) -> None:
        try:
            size = os.statvfs(self._path)
            files = list(self._find_files())
        except OSError:
            self._used = None
            return
        self._used = 1 - size.f_bavail / max(size.f_blocks, 1)
        started = self._find_users()
        unowned = [each for each in files if each.st_uid not in started]
        since = self._unowned
        self._unowned = {each.st_ino: since.get(each.st_ino, now) for each in unowned}
        self._stale = tuple(
            each.st_blocks * 512  # stat(2): blocks are units of 512 bytes
            for each in files
            if now - self._unowned.get(each.st_ino, now) >= STALE_S
            or each.st_ctime < started.get(each.st_uid, 0.0) - OLDER_S
        )
        if self._used >= FULL:
            self._full = now, self._describe(self._used)

    def _describe(self, used: float) -> str:
        text = f"/dev/shm is {used:.0%} full"
        if not self._stale:
            return text
        held = sum(self._stale) / _GIB
        return f"{text}; files of NCCL that ended jobs left behind hold {held:.1f} GiB of it"

    def _read_ranks(self, now: float) -> None:
        """Read the shared memory of ranks that are new, and forget those that ended long ago."""
        for pid in islice(self._find_ranks(), MAX_RANKS):
            stat, known = self._proc.stat(pid), self._ranks.get(pid)
            if stat is None:
                continue
            is_known = known is not None and known.start_time == stat.start_time
            size = known.size if known and is_known else self._find_size(pid)
            self._ranks[pid] = _Rank(stat.start_time, size, now)
        self._ranks = {
            pid: rank for pid, rank in self._ranks.items() if now - rank.seen_at <= KEPT_S
        }

    def _find_size(self, pid: int) -> int:
        """Return the size of /dev/shm of a process, from the last mount there; 0 without one."""
        size = 0
        mounts = self._proc.try_read(pid, "mountinfo", MAX_MOUNTS).decode("utf-8", "replace")
        for line in mounts.splitlines():
            place, _, source = line.partition(" - ")
            words = place.split()
            if len(words) > _MOUNT_POINT and words[_MOUNT_POINT] == "/dev/shm":
                size = _parse_size(source.split()[-1]) if source.startswith("tmpfs ") else 0
        return size

    def _find_files(self) -> Iterator[os.stat_result]:
        """Yield NCCL's files. Raises OSError if the folder cannot be read."""
        with os.scandir(self._path) as entries:
            for entry in islice(entries, MAX_ENTRIES):
                if entry.name.startswith(PREFIX) and entry.is_file(follow_symlinks=False):
                    try:
                        yield entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # removed a moment ago

    def _find_users(self) -> Mapping[int, float]:
        """Return the users of the ranks, with the time of day at which their first one started."""
        started: dict[int, float] = {}
        wall, boot = self._clock(), time.clock_gettime(time.CLOCK_BOOTTIME)
        for pid, rank in self._ranks.items():
            try:
                user = os.stat(self._proc.file(pid, "")).st_uid
            except OSError:
                continue  # it has ended
            at = wall - boot + rank.start_time / CLOCK_TICKS_PER_S
            started[user] = min(at, started.get(user, at))
        return started


def _parse_size(options: str) -> int:
    """Return the bytes of the option "size=65536k" of a tmpfs; 0 without it."""
    for option in options.split(","):
        name, _, value = option.partition("=")
        digits = value.removesuffix("k")
        if name == "size" and digits.isdecimal() and len(digits) < _MAX_DIGITS:
            return int(digits) * (1024 if value.endswith("k") else 1)
    return 0
