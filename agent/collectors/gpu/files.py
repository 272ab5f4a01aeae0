"""Collector: which GPU each rank has open, by its device files. It needs neither NVML nor a call.

NVML names the processes of a GPU, too. But it has no answer for a GPU that was lost before the
agent started, and none where its library is missing. Then the errors of that GPU in the kernel log
join a rank only by this.

The driver has a folder for each GPU, /proc/driver/nvidia/gpus/PCI, that names its device file. A
rank with several GPUs open says nothing: it may use any of them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from agent.collectors.collector import Collector, name_pci
from agent.procfs import Proc, read_text
from watchtower.wire.observations import Observation

EVERY_S = 10.0
"""Seconds between two reads. A rank opens its GPU once."""

MAX_RANKS, MAX_GPUS = 64, 64
MAX_FILES = 4096
"""Descriptors of one rank. A rank has some hundred; each costs 2 us."""

MAX_BYTES = 4096
"""Bytes read of a GPU's file. It has ten lines."""

_DEVICE = re.compile(r"/dev/nvidia(\d{1,4})")
_MINOR = re.compile(r"^Device Minor:\s{0,16}(\d{1,4})\s*$", re.MULTILINE)


class GpuFiles(Collector):
    """Joins the ranks of the node to GPUs."""

    name = "gpu_files"

    def __init__(
        self, root: str = "/", find_ranks: Callable[[], Iterable[int]] = lambda: ()
    ) -> None:
        """`find_ranks` returns the pids of the ranks of now."""
        self._proc = Proc(root)
        self._folder = os.path.join(root, "proc/driver/nvidia/gpus")
        self._find_ranks = find_ranks
        self._read_at = float("-inf")
        self._gpus: dict[int, str] = {}
        """Subjects of the GPUs by the number of their device file."""
        self._used: dict[int, str] = {}
        """Subject of the GPU that a rank has open, by pid."""

    def collect(self, now: float) -> Iterator[Observation]:
        """Return one observation for each rank that has one GPU open."""
        if now - self._read_at >= EVERY_S:
            self._read_at = now
            self._gpus = dict(islice(self._read_gpus(), MAX_GPUS))
            pids = islice(self._find_ranks(), MAX_RANKS) if self._gpus else ()
            self._used = {pid: gpu for pid in pids if (gpu := self._find_gpu(pid))}
        for pid, subject in self._used.items():
            yield Observation(
                source=self.name,
                subject=subject,
                name=f"gpu_open.{pid}",
                age_s=now - self._read_at,
                pid=pid,
            )

    @property
    def can_read(self) -> bool:
        """Whether the driver lists GPUs."""
        return bool(self._gpus)

    def _read_gpus(self) -> Iterator[tuple[int, str]]:
        try:
            names = sorted(os.listdir(self._folder))
        except OSError:
            return
        for pci in names:
            path = os.path.join(self._folder, pci, "information")
            if found := _MINOR.search(read_text(path, MAX_BYTES)):
                yield int(found[1]), name_pci(pci)

    def _find_gpu(self, pid: int) -> str:
        """Return the subject of the only GPU that a process has open; empty if that is not so."""
        folder = self._proc.file(pid, "fd")
        minors: set[int] = set()
        try:
            with os.scandir(folder) as entries:
                for entry in islice(entries, MAX_FILES):
                    minors |= set(_read_minor(entry.path))
        except OSError:
            return ""
        return self._gpus.get(minors.pop(), "") if len(minors) == 1 else ""


def _read_minor(path: str) -> Iterator[int]:
    """Yield the number of the GPU whose device file a descriptor is.

    The file may have another name in a container.
    """
    try:
        named = _DEVICE.fullmatch(os.readlink(path))
    except OSError:
        return
    if named is None:
        return
    try:
        about = os.stat(path)
    except OSError:
        yield int(named[1])
    else:
        yield os.minor(about.st_rdev) if stat.S_ISCHR(about.st_mode) else int(named[1])
