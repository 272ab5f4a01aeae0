"""Collector: the files that ranks write while they save a checkpoint.

Two ranks that write one file leave a broken checkpoint, which is found at the next start. No file
is opened: the kernel lists the descriptors of a process, how each one is open and on which mount.
Only ranks whose phase is a checkpoint are read. Many files are written to by several ranks on
purpose, such as logs, so only files with the usual endings of checkpoints count.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

from agent.collectors.collector import Collector
from agent.mounts import MountTables
from agent.procfs import Proc, parse_fields
from agent.ranks.guarded_reads import GuardedReads
from agent.ranks.owners import Owners
from watchtower.wire.bounds import MAX_NAME
from watchtower.wire.dumps import Mount
from watchtower.wire.observations import MAX_OBSERVATION_TEXT, WRITES_FILE, Observation
from watchtower.writing.printable import printable

ENDINGS = (".pt", ".pth", ".ckpt", ".safetensors", ".distcp", ".pkl", ".bin", ".tmp")
"""Endings of files of checkpoints. `.tmp`: many programs write so first, and rename the file."""

EVERY_S = 5.0
"""Seconds between two reads. A checkpoint of some GB needs longer."""

KEPT_S = 900.0
"""Seconds for which a file is reported after it was seen."""

MAX_RANKS, MAX_FILES, MAX_DESCRIPTORS = 16, 32, 4096
"""Ranks that are read at one time, files that are reported, and descriptors of one rank."""


class WrittenFiles(Collector):
    """Reads the descriptors of ranks that save a checkpoint."""

    name = "written_files"

    def __init__(
        self, root: str = "/", find_saving: Callable[[], Iterable[int]] = lambda: ()
    ) -> None:
        """`find_saving` returns the pids of the ranks that save a checkpoint now."""
        self._proc, self._find_saving = Proc(root), find_saving
        self._reads = GuardedReads(Owners(self._proc).find_quietly)
        self._read_at = float("-inf")
        self._seen: dict[tuple[str, int], tuple[float, str]] = {}
        """By file and pid: when it was seen last, and its path."""
        self._is_needed = False

    def collect(self, now: float) -> Iterator[Observation]:
        """Return an observation for each rank and file of the last 15 minutes."""
        pids = (
            list(islice(self._find_saving(), MAX_RANKS)) if now - self._read_at >= EVERY_S else ()
        )
        if pids:
            self._read_at, self._is_needed = now, True
            tables = MountTables(self._proc)
            for pid in pids:
                read = partial(lambda pid: list(self._find_files(pid, tables)), pid)
                for file, path in self._reads.run(pid, read) or ():
                    self._seen.pop((file, pid), None)
                    self._seen[file, pid] = now, path
        latest = list(self._seen.items())[-MAX_FILES:]
        self._seen = {key: each for key, each in latest if now - each[0] <= KEPT_S}
        for (file, pid), (at, path) in self._seen.items():
            yield Observation(
                source=self.name,
                subject=file,
                name=f"{WRITES_FILE}.{pid}",
                age_s=now - at,
                text=printable(path, MAX_OBSERVATION_TEXT),
                pid=pid,
            )

    @property
    def can_read(self) -> bool:
        """Whether a rank has saved a checkpoint."""
        return self._is_needed

    def _find_files(self, pid: int, tables: MountTables) -> Iterator[tuple[str, str]]:
        """Yield the files of checkpoints that a process has open for writing, and their paths."""
        try:
            numbers = islice(os.listdir(self._proc.file(pid, "fd")), MAX_DESCRIPTORS)
        except OSError:
            return
        for number in numbers:
            path = self._proc.link(pid, f"fd/{number}")
            if path.startswith("/") and path.endswith(ENDINGS):
                fields = parse_fields(self._proc.try_read(pid, f"fdinfo/{number}", 4096))
                if file := _name_file(fields, tables.find(pid, int(number))):
                    yield file, path


def _name_file(fields: dict[str, str], mounts: Sequence[Mount]) -> str:
    """Return "file:nfs4:server:/export:4711" of a descriptor; empty if it is only read, or if its
    kernel does not show the inode (before 5.14)."""
    flags, inode = fields.get("flags", ""), fields.get("ino", "")
    is_written = flags.isdigit() and int(flags, 8) & os.O_ACCMODE != os.O_RDONLY
    if not (is_written and inode.isdigit() and mounts):
        return ""
    return printable(f"file:{mounts[0].kind}:{inode[:20]}:{mounts[0].source}", MAX_NAME)
