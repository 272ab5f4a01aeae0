"""Dumper: where a thread is in the kernel. Takes 0.1 ms; never blocks."""

from __future__ import annotations

import os
import platform
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from agent.cgroups import CGROUP_MOUNT, read_memberships
from agent.mounts import MountTables
from agent.procfs import CLOCK_TICKS_PER_S, Proc, find_tracer, parse_fields, parse_stat
from watchtower.service.toml_tables import read_table
from watchtower.wire.bounds import MAX_NAME, MAX_TEXT
from watchtower.wire.connections import Connection
from watchtower.wire.dumps import KernelWait
from watchtower.wire.report import ProcessState
from watchtower.wire.sockets import format_connection, format_listening, format_unix
from watchtower.writing.printable import printable

MAX_STATE_BYTES = 1024
"""Bytes read of a state file of the kernel, which has two lines."""


def is_frozen(proc: Proc, pid: int) -> bool:
    """Return whether a cgroup of the process is frozen. False also if that cannot be read.

    State and kernel function of the process do not show this reliably. On cgroup v1 a frozen
    process is in state D; on v2 it sleeps, in any system call (new kernels leave it there). Its
    cgroup shows it (admin-guide/cgroup-v1/freezer-subsystem, cgroup-v2).
    """
    mount = os.path.join(os.path.dirname(proc.path), CGROUP_MOUNT)
    return any(
        _is_frozen(os.path.join(mount, folder), is_v2=each.is_v2)
        for each in read_memberships(proc, pid)
        if each.is_v2 or "freezer" in each.controllers
        for folder in each.folders
    )


def _is_frozen(folder: str, *, is_v2: bool) -> bool:
    if is_v2:
        events = parse_fields(_read(f"{folder}/cgroup.events").replace(b" ", b":"))
        return events.get("frozen") == "1"
    return _read(f"{folder}/freezer.state").strip() in (b"FROZEN", b"FREEZING")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_STATE_BYTES)
    except OSError:
        return b""


MAX_TABLE_BYTES = 8 << 20
"""About 50,000 connections. For further ones the inode is shown instead of the address."""

_ADDRESS, _PEER, _STATE, _QUEUES, _TIMER, _RETRIES = 1, 2, 3, 4, 5, 6
_USER, _INODE, _PAUSE = 7, 9, 12
"""Columns of /proc/net/tcp: the queues of bytes to send and to read, the running timer, how often
the kernel has sent the same data or request again, the user whose process made the socket, and the
pause until the next try in ticks."""

_ESTABLISHED, _OPENING, _LISTEN = "01", "02", "0A"

_RESENDS = "01:"
"""The timer that sends again what was not answered. Others probe a peer that answers, but has no
room, or that has been silent."""

MANY_RETRIES = 3
"""A request was sent again after 1, 3 and 7 s, so it is unanswered for 7 s at least."""

_UNIX_INODE = 6
"""Column of /proc/net/unix. The path follows it if the socket is bound to one."""


class SocketTables:
    """The tables of each network namespace, read once, because a node may have 50,000
    connections.

    Each is indexed at its first use. A search of its text for every descriptor would take 20 ms
    each, and a round describes some thousands of them.
    """

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._tables: dict[tuple[str, str], dict[bytes, bytes]] = {}

    def describe(self, pid: int, inode: int) -> str:
        """Return the text for a socket, as `wire.sockets` describes it; empty if its inode is in
        none of the tables.
        """
        fields = self.find_tcp(pid, inode)
        if fields is not None:
            return _describe(fields)
        line = self._table(pid, "net/unix", _UNIX_INODE).get(str(inode).encode())
        if line is not None:
            path = b" ".join(line.split()[_UNIX_INODE + 1 :]).decode("utf-8", "replace")
            return format_unix(path)
        return ""

    def find_tcp(self, pid: int, inode: int) -> list[str] | None:
        """Return the columns of a TCP socket; None if it is another one."""
        wanted = str(inode).encode()
        for name in ("net/tcp", "net/tcp6"):
            line = self._table(pid, name).get(wanted)
            if line is not None:
                return [field.decode("ascii", "replace") for field in line.split()]
        return None

    def _table(self, pid: int, name: str, column: int = _INODE) -> dict[bytes, bytes]:
        """Return the lines of a table by their inode, which is in this column."""
        key = (self._proc.link(pid, "ns/net") or str(pid), name)
        if key not in self._tables:
            text = self._proc.try_read(pid, name, MAX_TABLE_BYTES)
            self._tables[key] = _index(text, column)
        return self._tables[key]


class Listening(NamedTuple):
    """A TCP socket that accepts connections."""

    address: str
    """With its port: "0.0.0.0:29500"."""
    inode: int
    user: int
    """The user id of the process that made it."""


def list_listening(proc: Proc, pid: int) -> Iterator[Listening]:
    """Yield the TCP sockets in the network namespace of a process that accept connections."""
    for name in ("net/tcp", "net/tcp6"):
        table = proc.try_read(pid, name, MAX_TABLE_BYTES).decode("ascii", "replace")
        for fields in map(str.split, table.split("\n")):
            if len(fields) > _INODE and fields[_STATE] == _LISTEN:
                with suppress(ValueError):  # the last line may be cut
                    inode, user = int(fields[_INODE]), int(fields[_USER])
                    yield Listening(parse_address(fields[_ADDRESS]), inode, user)


def _index(table: bytes, column: int) -> dict[bytes, bytes]:
    """Return the lines by the text in a column; of several, the first."""
    lines: dict[bytes, bytes] = {}
    for line in table.split(b"\n"):
        fields = line.split(None, column + 1)
        if len(fields) > column:
            lines.setdefault(fields[column].strip(), line)
    return lines


def _describe(fields: list[str]) -> str:
    try:
        local = parse_address(fields[_ADDRESS])
        if fields[_STATE] == _LISTEN:
            return format_listening(local)
        peer = parse_address(fields[_PEER])
        return format_connection(local, peer, is_answered=not _is_unanswered(fields))
    except (IndexError, ValueError):
        return ""


def read_socket(fields: list[str]) -> str | Connection | None:
    """Return the address at which a socket accepts connections, else its connection; None for one
    that is closing, or whose line is cut."""
    try:
        local, state = parse_address(fields[_ADDRESS]), fields[_STATE]
        if state == _LISTEN:
            return local
        if state not in (_ESTABLISHED, _OPENING):
            return None
        resends = fields[_TIMER].startswith(_RESENDS)
        return Connection(
            local=local,
            remote=parse_address(fields[_PEER]),
            opening=state == _OPENING,
            tries=int(fields[_RETRIES], 16) if resends else 0,
            pause_s=int(fields[_PAUSE]) / CLOCK_TICKS_PER_S,
            unanswered_bytes=int(fields[_QUEUES].partition(":")[0], 16),
        )
    except (IndexError, ValueError):
        return None


def _is_unanswered(fields: list[str]) -> bool:
    # The last line of a table may be cut.
    if len(fields) <= _INODE or fields[_STATE] != _OPENING:
        return False
    return int(fields[_RETRIES], 16) >= MANY_RETRIES


def parse_address(text: str) -> str:
    """Parse "0100007F:1F90": the address as 32-bit words in the machine's own byte order."""
    words, colon, port = text.partition(":")
    if not colon or len(words) not in (8, 32):
        raise ValueError(f"invalid address: {text}")
    raw = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    if len(raw) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, raw)}:{int(port, 16)}"
    if raw.startswith(b"\0" * 10 + b"\xff\xff"):  # IPv4 in an IPv6 socket
        return f"{socket.inet_ntop(socket.AF_INET, raw[12:])}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, raw)}]:{int(port, 16)}"


RUNNING = "running"

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


class SystemCalls:
    """Names of the system calls a thread can block in."""

    def __init__(
        self, names: dict[int, str], with_descriptor: frozenset[str], with_path: frozenset[str]
    ) -> None:
        self._names = names
        self._with_descriptor, self._with_path = with_descriptor, with_path

    def name(self, number: int) -> str:
        """Return the call's name, or `syscall_N` if the table does not have it."""
        return self._names.get(number, f"syscall_{number}")

    def has_descriptor(self, name: str) -> bool:
        """Return whether the first argument of the call is a file descriptor."""
        return name in self._with_descriptor

    def has_path(self, name: str) -> bool:
        """Return whether the call has a path argument."""
        return name in self._with_path


@cache
def load_system_calls(machine: str) -> SystemCalls:
    """Read the table for a machine. Numbers differ between architectures."""
    table = read_table("agent.data", "syscalls")
    names = table.get(MACHINES.get(machine, machine), {})
    return SystemCalls(
        {number: name for name, number in names.items()},
        frozenset(table["first_argument_is_descriptor"]),
        frozenset(table["takes_path"]),
    )


def parse_syscall(raw: bytes, calls: SystemCalls) -> tuple[str, int]:
    """Return name and descriptor from /proc/PID/syscall; "" and -1 if missing.

    The file contains "running", or "-1 SP PC" for a thread blocked outside a call, or "0 0x3
    0x7ffd... SP PC": number, six arguments, two addresses.
    """
    words = raw.decode("ascii", "replace").split()
    try:
        number = int(words[0])
        argument = int(words[1], 16)
    except (IndexError, ValueError):
        return "", -1
    if number < 0:
        return "", -1
    name = calls.name(number)
    descriptor = argument & 0xFFFFFFFF
    if not calls.has_descriptor(name) or descriptor > 0x7FFFFFFF:
        return name, -1
    return name, descriptor


class KernelTables:
    """Kernel tables that all processes of one round of dumps share."""

    def __init__(self, proc: Proc) -> None:
        self.sockets = SocketTables(proc)
        self.mounts = MountTables(proc)


def read_kernel_wait(proc: Proc, pid: int, tables: KernelTables | None = None) -> KernelWait:
    """Read state, kernel function, system call, its target and mount, and the tracer of a process.

    `tables` are shared by the reads of one round.
    """
    tables = tables or KernelTables(proc)
    stat = parse_stat(proc.try_read(pid, "stat", 4096))
    if stat is None:
        return KernelWait(state=ProcessState.GONE)
    tracer = find_tracer(proc, pid)
    return replace(
        _read_wait(proc, pid, "", ProcessState(stat.state), tables),
        tracer_pid=tracer,
        tracer_name=_name_of(proc, tracer),
        frozen=is_frozen(proc, pid),
    )


def read_thread_wait(proc: Proc, pid: int, tid: int, tables: KernelTables) -> KernelWait:
    """Read the same of one thread of a process, without what is of the whole process."""
    folder = f"task/{tid}/"
    stat = parse_stat(proc.try_read(pid, f"{folder}stat", 4096))
    if stat is None:
        return KernelWait(state=ProcessState.GONE)
    return _read_wait(proc, pid, folder, ProcessState(stat.state), tables)


def _read_wait(
    proc: Proc, pid: int, folder: str, state: ProcessState, tables: KernelTables
) -> KernelWait:
    """Read where a thread waits. `folder`: its folder inside of that of its process."""
    wchan = proc.try_read(pid, f"{folder}wchan", 256).decode("ascii", "replace").strip()
    calls = load_system_calls(platform.machine())
    name, descriptor = parse_syscall(proc.try_read(pid, f"{folder}syscall", 256), calls)
    target = describe_target(proc, pid, descriptor, tables.sockets)
    # A page fault on a mapped file has no system call.
    may_lack_descriptor = state is ProcessState.UNINTERRUPTIBLE or calls.has_path(name)
    is_file_call = target.startswith("/") or (descriptor < 0 and may_lack_descriptor)
    return KernelWait(
        state=state,
        wchan="" if wchan == "0" else wchan[:MAX_NAME],
        syscall=name,
        target=printable(target, MAX_TEXT),
        mounts=tables.mounts.find(pid, descriptor) if is_file_call else (),
    )


def describe_target(proc: Proc, pid: int, descriptor: int, tables: SocketTables) -> str:
    """Return the target of a descriptor: a path, a pipe, both ends of a connection; else ""."""
    if descriptor < 0:
        return ""
    link = proc.link(pid, f"fd/{descriptor}")
    if link.startswith("socket:["):
        return tables.describe(pid, int(link[len("socket:[") : -1])) or link
    return link


def _name_of(proc: Proc, pid: int) -> str:
    if pid <= 0:
        return ""
    return printable(proc.name(pid), MAX_NAME)
