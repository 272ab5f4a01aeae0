"""Reads /proc: pure parsers, and one small reader with the path of /proc.

Nearly all reads return at once, because they come from the kernel's own tables. `environ` and
`cmdline` come from the process's memory and may hang, and `fdinfo` of an epoll waits for the files
in it: read these in `agent.ranks.guarded_reads` or in a child process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

MAX_VARIABLES = 4096
"""Variables parsed in one environment. Real ones have a hundred."""


CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MAX_FILE_BYTES = 1 << 20
"""Bytes read of one file. The kernel limits an environment to a few MB; real ones have a few kB."""

MAX_COMMAND_BYTES = 4096
"""Bytes read of a command line. A launcher is recognized by its first arguments."""

_STATE, _PPID, _FLAGS, _UTIME, _STIME, _CUTIME, _CSTIME = 0, 1, 6, 11, 12, 13, 14
_THREADS, _START = 17, 19
_START_CODE, _EXIT = 23, 49
_IMAGE = (25, 45, 47)
"""Positions after the command name: the field number in proc(5) minus 3."""

_PF_KTHREAD = 0x00200000
"""Kernel threads have no memory, no descriptors and no rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """The fields of /proc/PID/stat that the agent uses."""

    comm: str
    state: str
    ppid: int
    kernel_thread: bool
    cpu_s: float
    start_time: int
    start_code: int
    """1 if the reader may not trace the process. Then `exit_code` is 0 without meaning."""
    exit_code: int
    """Wait status, only valid for a zombie."""
    threads: int = 1
    ended_children_s: float = 0.0
    """CPU seconds of its ended children, and of theirs."""
    image: tuple[int, ...] = ()
    """Where the program's stack, arguments and environment began: other places after an exec. All 0
    if the reader may not trace the process.
    """


def parse_stat(raw: bytes) -> Stat | None:
    """Parse /proc/PID/stat; None if invalid. The command name may contain spaces, brackets,
    newlines.
    """
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
            threads=int(fields[_THREADS]),
            ended_children_s=(int(fields[_CUTIME]) + int(fields[_CSTIME])) / CLOCK_TICKS_PER_S,
            image=tuple(int(fields[at]) for at in _IMAGE if at < len(fields)),
        )
    except ValueError:
        return None


def parse_environ(raw: bytes) -> dict[str, str]:
    """Parse /proc/PID/environ. The first of two equal names counts, as for getenv(3)."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedWith:
    """The environment and command line of a process, raw. Both are empty bytes if they are not
    readable or the process has ended.
    """

    environ: bytes
    command: bytes
    stat: Stat | None = None
    """Read before the environment: if an exec comes between, the next `image` differs."""
    program: str = ""
    """The file name of the program that the kernel runs, whatever the command line says."""


class Proc:
    """One /proc, perhaps of another root (a host's, mounted into the agent's container)."""

    def __init__(self, root: str = "/") -> None:
        self.path = os.path.join(root, "proc")

    def file(self, pid: int, name: str) -> str:
        """Return the path of a file of one process."""
        return f"{self.path}/{pid}/{name}"

    def pids(self) -> set[int]:
        """Return the pids that exist now, including zombies."""
        return {int(name) for name in os.listdir(self.path) if name.isdigit()}

    def read(self, pid: int, name: str, limit: int = MAX_FILE_BYTES) -> bytes:
        """Return the content of a file of one process. Raises OSError."""
        fd = os.open(self.file(pid, name), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return _read_up_to(fd, limit)
        finally:
            os.close(fd)

    def try_read(self, pid: int, name: str, limit: int = MAX_FILE_BYTES) -> bytes:
        """Return the content of a file of one process; empty if it cannot be read."""
        try:
            return self.read(pid, name, limit)
        except OSError:
            return b""

    def started_with(self, pid: int) -> StartedWith:
        """Return the environment and command line of a process. This may hang."""
        return StartedWith(
            stat=self.stat(pid),
            program=os.path.basename(self.link(pid, "exe").removesuffix(" (deleted)")),
            environ=self.try_read(pid, "environ"),
            command=self.try_read(pid, "cmdline", MAX_COMMAND_BYTES),
        )

    def stat(self, pid: int) -> Stat | None:
        """Return the process's parsed stat file; None if it has ended."""
        return parse_stat(self.try_read(pid, "stat", 4096))

    def link(self, pid: int, name: str) -> str:
        """Return the target of a link of one process; empty if it cannot be read."""
        try:
            return os.readlink(self.file(pid, name))
        except OSError:
            return ""

    def link_of_self(self) -> str:
        """Return our own pid in this /proc; empty if it shows other pids than ours."""
        try:
            return os.readlink(f"{self.path}/self")
        except OSError:
            return ""

    def descriptors(self, pid: int) -> Iterator[str]:
        """Yield the targets of a process's descriptors, as they are read.

        A process may have a million descriptors, which take a second to list: take a part of them.
        """
        try:
            with os.scandir(self.file(pid, "fd")) as entries:
                for entry in entries:
                    yield self.link(pid, f"fd/{entry.name}")
        except OSError:
            return

    def name(self, pid: int) -> str:
        """Return the name of the main thread: the program's, or one that the program has set."""
        return self.try_read(pid, "comm", 64).decode("utf-8", "replace").strip()

    def namespaced_pid(self, pid: int) -> int:
        """Return the pid as the process itself sees it: the last field of NSpid."""
        ids = parse_fields(self.try_read(pid, "status", 8192)).get("NSpid", "").split()
        return int(ids[-1]) if ids else pid


def _read_up_to(fd: int, limit: int) -> bytes:
    parts: list[bytes] = []
    left = limit
    while left > 0 and (part := os.read(fd, min(left, 65536))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def read_text(path: str, limit: int) -> str:
    """Return at most `limit` bytes of a file of the kernel, as ASCII; empty if it cannot be read.

    It is not for files of /proc/PID: `Proc` has those, and some of them may hang.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return _read_up_to(fd, limit).decode("ascii", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


def find_tracer(proc: Proc, pid: int) -> int:
    """Return the pid of the process that traces a process; 0 without one.

    A tracer in an outer pid namespace is also 0.
    """
    text = parse_fields(proc.try_read(pid, "status", 8192)).get("TracerPid", "0")
    return int(text) if text.isdigit() else 0
