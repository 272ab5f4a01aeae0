"""Dumper: where a thread is in the kernel. Takes 0.1 ms; never blocks."""

from __future__ import annotations

import platform
from dataclasses import replace
from functools import cache

from agent.dumpers.freezer import is_frozen
from agent.dumpers.sockets import SocketTables
from agent.mounts import MountTables
from agent.procfs import Proc, parse_stat
from agent.tracers import find_foreign_tracer, see_past_own_tools
from watchtower.service.toml_tables import read_table
from watchtower.wire.bounds import MAX_NAME, MAX_TEXT
from watchtower.wire.dumps import KernelWait
from watchtower.wire.report import ProcessState
from watchtower.writing.printable import printable

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
    state = see_past_own_tools(proc, pid, ProcessState(stat.state))
    tracer = find_foreign_tracer(proc, pid)
    return replace(
        _read_wait(proc, pid, "", state, tables),
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
