"""Collector: the shared memory of the node, /dev/shm.

NCCL and data loaders exchange data there. A library that finds no room is ended by SIGBUS, or stops
with an error that does not name the reason. NCCL's files stay behind when a job is killed.

Only the folder of the node is read: one of a container may be any mount, and reading it may block.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from agent.collectors.collector import Collector
from agent.procfs import Proc
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

MAX_ENTRIES = 4096
"""Entries of the folder that are read. A rank has some dozens of NCCL's."""

MAX_RANKS = 64
"""Ranks whose users are read. A node has up to 16."""

_GIB = 1 << 30


class SharedMemory(Collector):
    """Reads /dev/shm of one root."""

    name = "shared_memory"
    metrics = (USED, STALE)

    def __init__(
        self, root: str = "/", find_ranks: Callable[[], Iterable[int]] = lambda: ()
    ) -> None:
        """`find_ranks` returns the pids of the ranks of now."""
        self._path = os.path.join(root, "dev/shm")
        self._proc = Proc(root)
        self._find_ranks = find_ranks
        self._read_at = float("-inf")
        self._used: float | None = None
        self._unowned: dict[int, float] = {}
        """By inode: since when a file of NCCL belongs to a user without ranks."""
        self._stale: tuple[int, ...] = ()
        """Sizes of the files that were left behind, in bytes."""

    def collect(self, now: float) -> Iterator[Observation]:
        """Return one observation while it is nearly full."""
        if now - self._read_at >= EVERY_S:
            self._read_at = now
            self._read(now)
        if self._used is not None and self._used >= FULL:
            text = f"/dev/shm is {self._used:.0%} full"
            if self._stale:
                held = sum(self._stale) / _GIB
                text += f"; files of NCCL that ended jobs left behind hold {held:.1f} GiB of it"
            yield Observation(
                source=self.name,
                subject=NODE,
                name="shm_full",
                age_s=now - self._read_at,
                value=self._used,
                text=text,
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
        users = set(self._find_users())
        unowned = [each for each in files if each.st_uid not in users]
        since = self._unowned
        self._unowned = {each.st_ino: since.get(each.st_ino, now) for each in unowned}
        self._stale = tuple(
            each.st_blocks * 512  # stat(2): blocks are units of 512 bytes
            for each in unowned
            if now - self._unowned[each.st_ino] >= STALE_S
        )

    def _find_files(self) -> Iterator[os.stat_result]:
        """Yield NCCL's files. Raises OSError if the folder cannot be read."""
        with os.scandir(self._path) as entries:
            for entry in islice(entries, MAX_ENTRIES):
                if entry.name.startswith(PREFIX) and entry.is_file(follow_symlinks=False):
                    try:
                        yield entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # removed a moment ago

    def _find_users(self) -> Iterator[int]:
        """Yield the users of the ranks."""
        for pid in islice(self._find_ranks(), MAX_RANKS):
            try:
                yield os.stat(self._proc.file(pid, "")).st_uid
            except OSError:
                continue  # it has ended
