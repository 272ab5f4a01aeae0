"""Reading /proc: parsers by value, and one small reader that knows where /proc is.

What it reads comes from the kernel's own tables, at once. Only `environ` and `cmdline` come from
the process's memory, and may hang with it: `agent.discovery.proc_args_reader` reads them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

MAX_VARIABLES = 4096
"""Variables checked in one environment; real ones have a hundred."""


CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MAX_FILE_BYTES = 1 << 20
"""Longest file read whole; an environment is limited to a few MB by the kernel, real ones to kB."""

_STATE, _PPID, _FLAGS, _UTIME, _STIME, _START, _START_CODE, _EXIT = 0, 1, 6, 11, 12, 19, 23, 49
"""Positions after the command name: field number in proc(5) minus 3."""

_PF_KTHREAD = 0x00200000
"""Kernel threads have no memory, no descriptors and no rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """What the agent uses of /proc/PID/stat."""

    comm: str
    state: str
    ppid: int
    kernel_thread: bool
    cpu_s: float
    start_time: int
    start_code: int
    """1 when the reader may not trace the process: then `exit_code` reads 0 and means nothing."""
    exit_code: int
    """Wait status, only meaningful for a zombie."""


def parse_stat(raw: bytes) -> Stat | None:
    """Parse /proc/PID/stat; the command name may hold spaces, brackets and newlines."""
    head, bracket, tail = raw.rpartition(b")")
    fields = tail.split()
    if not bracket or len(fields) <= _START_CODE:
        return None
    try:
        return Stat(
            comm=head.partition(b"(")[2].decode("utf-8", "replace"),
            state=fields[_STATE].decode("ascii", "replace"),
            ppid=int(fields[_PPID]),
            kernel_thread=bool(int(fields[_FLAGS]) & _PF_KTHREAD),
            cpu_s=(int(fields[_UTIME]) + int(fields[_STIME])) / CLOCK_TICKS_PER_S,
            start_time=int(fields[_START]),
            start_code=int(fields[_START_CODE]),
            exit_code=int(fields[_EXIT]) if len(fields) > _EXIT else 0,
        )
    except ValueError:
        return None


def parse_environ(raw: bytes) -> dict[str, str]:
    """Parse /proc/PID/environ; the first of two equal names counts, as for getenv(3)."""
    result: dict[str, str] = {}
    for item in raw.split(b"\0", MAX_VARIABLES)[:MAX_VARIABLES]:
        name, equals, value = item.partition(b"=")
        if equals and name:
            result.setdefault(
                name.decode("utf-8", "surrogateescape"), value.decode("utf-8", "replace")
            )
    return result


def parse_command(raw: bytes) -> list[str]:
    """Parse /proc/PID/cmdline: each argument ends in a NUL byte."""
    parts = raw.split(b"\0")
    return [part.decode("utf-8", "replace") for part in (parts if parts[-1] else parts[:-1])]


def parse_fields(raw: bytes) -> dict[str, str]:
    """Parse "Name: value" lines, as in /proc/PID/status and /proc/PID/io."""
    result: dict[str, str] = {}
    for line in raw.decode("utf-8", "replace").split("\n"):
        name, colon, value = line.partition(":")
        if colon:
            result.setdefault(name, value.strip())
    return result


class Proc:
    """One /proc, perhaps of another root (a host's, mounted into the agent's container)."""

    def __init__(self, root: str = "/") -> None:
        self.path = os.path.join(root, "proc")

    def file(self, pid: int, name: str) -> str:
        """Path of a file of one process."""
        return f"{self.path}/{pid}/{name}"

    def pids(self) -> set[int]:
        """Processes that exist now, zombies included."""
        return {int(name) for name in os.listdir(self.path) if name.isdigit()}

    def read(self, pid: int, name: str, limit: int = MAX_FILE_BYTES) -> bytes:
        """Read a file of one process; OSError says why not."""
        fd = os.open(self.file(pid, name), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _read_up_to(fd, limit)
        finally:
            os.close(fd)

    def try_read(self, pid: int, name: str, limit: int = MAX_FILE_BYTES) -> bytes:
        """Read a file of one process, nothing when it cannot be read."""
        try:
            return self.read(pid, name, limit)
        except OSError:
            return b""

    def stat(self, pid: int) -> Stat | None:
        """Parse the process's stat file; None when it is gone."""
        return parse_stat(self.try_read(pid, "stat", 4096))

    def link(self, pid: int, name: str) -> str:
        """Read a link of one process, empty when it cannot be read."""
        try:
            return os.readlink(self.file(pid, name))
        except OSError:
            return ""

    def name(self, pid: int) -> str:
        """Name of the main thread: the program's, or what it calls itself."""
        return self.try_read(pid, "comm", 64).decode("utf-8", "replace").strip()

    def namespaced_pid(self, pid: int) -> int:
        """Process id as the process itself sees it: the last field of NSpid."""
        ids = parse_fields(self.try_read(pid, "status", 8192)).get("NSpid", "").split()
        return int(ids[-1]) if ids else pid


def _read_up_to(fd: int, limit: int) -> bytes:
    parts: list[bytes] = []
    left = limit
    while left > 0 and (part := os.read(fd, min(left, 65536))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
