"""Collector: which GPU each rank has open, and how many it may use, by its device files and its
variables. It needs neither NVML nor a call.

NVML names the processes of a GPU, too. But it has no answer for a GPU that was lost before the
agent started, and none where its library is missing. Then the errors of that GPU in the kernel log
join a rank only by this.

The driver has a folder for each GPU, /proc/driver/nvidia/gpus/PCI, that names its device file. A
rank with several GPUs open says nothing: it may use any of them.

How many GPUs the scheduler gave to a rank is only in variables: the device files of all may be
there. The program may change them later, but not what it got.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import NamedTuple

from agent.collectors.collector import Collector, name_pid
from agent.procfs import Proc, parse_environ, read_text
from agent.ranks.guarded_reads import GuardedReads
from agent.ranks.owners import Owners
from watchtower.wire.observations import GPUS_ALLOWED, SHARES_GPU, Observation, name_pci
from watchtower.writing.printable import printable

EVERY_S = 10.0
"""Seconds between two reads. A rank opens its GPU once."""

MAX_RANKS, MAX_GPUS = 64, 64
MAX_FILES = 4096
"""Descriptors of one rank. A rank has some hundred; each costs 2 us."""

MAX_BYTES = 4096
"""Bytes read of a GPU's file. It has ten lines."""

MAX_LISTED = 256
"""Characters of a list of GPUs that are read. A node has up to 16, with names of 40 characters."""

LISTS = (
    "SLURM_STEP_GPUS",
    "SLURM_JOB_GPUS",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
)
"""Variables with the GPUs that a rank may use. The first one that is set counts: what a scheduler
gave counts more than what a user chose."""

PARTS = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "SLURM_SHARDS_ON_NODE")
"""Variables of a rank that uses a part of a GPU on purpose."""

_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")
_DEVICE = re.compile(r"/dev/nvidia(\d{1,4})")
_MINOR = re.compile(r"^Device Minor:\s{0,16}(\d{1,4})\s*$", re.MULTILINE)


class Allowed(NamedTuple):
    """How many GPUs a rank may use."""

    start_time: int
    """Of its process."""
    gpus: int
    """0 if it uses a part of one."""
    text: str


def find_allowed(variables: Mapping[str, str], start_time: int) -> Allowed | None:
    """Return how many GPUs a rank with these variables may use; None if they do not show it."""
    if part := next((name for name in PARTS if variables.get(name, "").strip()), ""):
        return Allowed(start_time, 0, f"{SHARES_GPU} ({part})")
    for name in LISTS:
        value = variables.get(name, "").strip()[:MAX_LISTED]
        if "MIG-" in value:
            return Allowed(start_time, 0, f"{SHARES_GPU} ({name}={value})")
        if count := sum(map(_count, value.split(","))):
            return Allowed(start_time, count, f"{name}={value}")
    return None


def _count(part: str) -> int:
    """Return how many GPUs a part of a list names: "3", "0-3", "GPU-8f3a...". Words such as "all"
    and "NoDevFiles" name none."""
    found = _RANGE.fullmatch(part.strip())
    if found is None:
        return int(part.strip().startswith("GPU-"))
    return max(0, int(found[2] or found[1]) - int(found[1]) + 1)


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
        self._reads = GuardedReads(Owners(self._proc).find_quietly)
        self._allowed: dict[int, Allowed] = {}
        """What each rank may use, by pid."""

    def collect(self, now: float) -> Iterator[Observation]:
        """Return an observation for each rank that has one GPU open, and for each one of which it
        is known how many it may use."""
        if now - self._read_at >= EVERY_S:
            self._read_at = now
            self._gpus = dict(islice(self._read_gpus(), MAX_GPUS))
            pids = tuple(islice(self._find_ranks(), MAX_RANKS))
            with_gpus = pids if self._gpus else ()
            self._used = {pid: gpu for pid in with_gpus if (gpu := self._find_gpu(pid))}
            self._allowed = dict(self._read_allowed(pids))
        for pid, subject in self._used.items():
            yield Observation(
                source=self.name,
                subject=subject,
                name=f"gpu_open.{pid}",
                age_s=now - self._read_at,
                pid=pid,
            )
        for pid, allowed in self._allowed.items():
            yield Observation(
                source=self.name,
                subject=name_pid(pid),
                name=GPUS_ALLOWED,
                age_s=now - self._read_at,
                value=allowed.gpus,
                text=printable(allowed.text, MAX_LISTED),
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

    def _read_allowed(self, pids: Iterable[int]) -> Iterator[tuple[int, Allowed]]:
        """Yield what ranks may use. The environment of each one is read once."""
        for pid in pids:
            stat = self._proc.stat(pid)
            known = self._allowed.get(pid)
            if stat is None:
                continue
            if known is None or known.start_time != stat.start_time:
                raw = self._reads.run(pid, partial(self._proc.try_read, pid, "environ"))
                known = find_allowed(parse_environ(raw or b""), stat.start_time)
            if known is not None:
                yield pid, known

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
