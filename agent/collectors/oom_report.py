"""Sums up the kernel's report of an OOM kill: how much memory there was, and who used it.

The kernel writes the report before the line with the killed process (mm/oom_kill.c). If a memory
cgroup was full: its use and limit, then a table of its processes, in pages. Else the memory of the
node was full, and the table has all processes of the node.

Processes are summed up by name: PyTorch calls the workers of a DataLoader `pt_data_worker`.
"""

from __future__ import annotations

import os
import re
from collections import Counter

from watchtower.writing.printable import printable

MAX_NAMES = 256
"""Names of processes that are counted one by one. Further ones are summed up as "others"."""

MAX_SHOWN = 3
"""Names in the text, those with the most memory first."""

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_BEGIN = re.compile(r".{1,64} invoked oom-killer: ")
_CGROUP = re.compile(r"memory: usage (?P<usage>\d{1,18})kB, limit (?P<limit>\d{1,18})kB, ")
_ROW = re.compile(
    r"\[ {0,10}(?P<pid>\d{1,10})\] +\d{1,10} +\d{1,10} +\d{1,18} +(?P<rss>\d{1,18})"
    r"(?: +-?\d{1,18}){3,8} +(?P<name>\S.{0,15})$"
)
"""pid, uid, tgid, total_vm, rss; its parts from Linux 6.8 on; page tables, swap, score, name."""

_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


class OomReport:
    """The newest report of the kernel, as far as it was read."""

    def __init__(self) -> None:
        self._cgroup: tuple[int, int] | None = None
        """Bytes used, and the limit."""
        self._held = Counter[str]()
        """Resident bytes by name. Memory that processes share counts for each of them."""
        self._processes = Counter[str]()

    def take(self, line: str) -> None:
        """Add one line of the kernel log; other lines change nothing."""
        if _BEGIN.match(line):
            self._forget()
        elif match := _CGROUP.match(line):
            self._cgroup = int(match["usage"]) * 1024, int(match["limit"]) * 1024
        elif match := _ROW.match(line):
            name = printable(match["name"], 16)
            if name not in self._held and len(self._held) >= MAX_NAMES:
                name = "others"
            self._held[name] += int(match["rss"]) * PAGE_BYTES
            self._processes[name] += 1

    def finish(self) -> str:
        """Return the sum of the report and forget it; empty if none was read.

        "its memory cgroup was full (64 GiB of 64 GiB: 8 pt_data_worker 50 GiB, 1 python 14 GiB)"
        """
        text = self._write()
        self._forget()
        return text

    def _forget(self) -> None:
        self._cgroup = None
        self._held.clear()
        self._processes.clear()

    def _write(self) -> str:
        if not self._held:
            return ""
        shown = self._held.most_common(MAX_SHOWN)
        users = [f"{self._processes[name]} {name} {format_bytes(held)}" for name, held in shown]
        if rest := self._held.total() - sum(held for _, held in shown):
            users.append(f"others {format_bytes(rest)}")
        used_by = ", ".join(users)
        if self._cgroup is None:
            return f"the memory of the node was full ({used_by})"
        used, limit = map(format_bytes, self._cgroup)
        return f"its memory cgroup was full ({used} of {limit}: {used_by})"


def format_bytes(count: int) -> str:
    """Return "380 GiB", "1.5 MiB", "12 KiB"."""
    for unit, size in _UNITS:
        if count >= size:
            shown = count / size
            return f"{shown:.0f} {unit}" if shown >= 10 else f"{shown:.1f} {unit}"
    return f"{count} B"
