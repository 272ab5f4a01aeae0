"""Collector: state, kernel wait and movement of a rank's process tree."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from itertools import islice

from agent.procfs import Proc, Stat, parse_stat
from agent.ranks.process_table import Process
from watchtower.wire.bounds import MAX_NAME
from watchtower.wire.report import Movement, ProcessState

SAMPLES_PER_TICK = 32
"""Child processes whose CPU and bytes are read per tick. If there are more, they take turns."""

MAX_METERED_CHILDREN = 256
"""Children of one rank whose movement counts. Each needs two descriptors of the agent."""

NO_WAIT = ("0", "")
"""wchan of a thread that runs or may not be checked."""


class OpenFiles:
    """Files of one process, opened once and read often. A later process with this pid is never
    read.
    """

    def __init__(self, proc: Proc, pid: int) -> None:
        self.proc, self.pid = proc, pid
        self._descriptors: dict[str, int] = {}

    def __del__(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)

    def read(self, name: str) -> bytes:
        """Return the content of a file from its beginning. Raises OSError."""
        if name not in self._descriptors:
            path = self.proc.file(self.pid, name)
            self._descriptors[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._descriptors[name], 4096, 0)

    def stat(self) -> Stat | None:
        """Return the parsed stat file; None if the process has ended."""
        try:
            return parse_stat(self.read("stat"))
        except OSError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Counters of one process at one moment. Bytes are None if they may not be read."""

    at: float
    cpu_s: float
    read_bytes: int | None
    write_bytes: int | None


@dataclass(slots=True, kw_only=True, eq=False)
class _Meter:
    files: OpenFiles
    last: Counters | None = None
    rates: Movement = Movement()


class MovementMeter:
    """Sums the movement of a rank and its living children.

    A parent's counters include the CPU of a child only after the child has ended (compilers,
    uploads), so each child is read.
    """

    def __init__(self, proc: Proc, process: Process, files: OpenFiles) -> None:
        self._proc, self._process = proc, process
        self._own = _Meter(files=files)
        self._children: dict[Process, _Meter] = {}

    def sample(self, stat: Stat | None, budget: int) -> tuple[Movement, int]:
        """Read the rank, and its children in turn within the budget; return the budget that is
        left. `stat` is that of the rank, read a moment ago.
        """
        # The nearest children only: a rank that forks thousands must not use up all descriptors.
        alive = dict.fromkeys(islice(self._process.descendants(), MAX_METERED_CHILDREN))
        self._children = {child: self._children.get(child) or self._meter(child) for child in alive}
        _measure(self._own, stat)
        oldest = sorted(self._children.values(), key=_measured_at)[: max(0, budget)]
        for meter in oldest:
            _measure(meter, meter.files.stat())
        return _sum([self._own, *self._children.values()]), budget - len(oldest)

    def _meter(self, process: Process) -> _Meter:
        return _Meter(files=OpenFiles(self._proc, process.pid))


class BlockMeter:
    """Measures for how long the main thread of a process has not run at all."""

    def __init__(self, files: OpenFiles) -> None:
        self._files = files
        self._counters: list[bytes] = []
        """Nanoseconds on a CPU, nanoseconds in a queue for one, and times that it got one."""
        self._since = 0.0

    def measure(self, now: float) -> float:
        """Return the seconds between two reads of /proc/PID/schedstat that show the same counters;
        0 if the thread ran, or if the file cannot be read."""
        try:
            counters = self._files.read("schedstat").split()
        except OSError:
            return 0.0
        if counters != self._counters:
            self._counters, self._since = counters, now
        return now - self._since


class TickBudget:
    """The reads of one tick, shared by all ranks, so that a node with many workers stays cheap."""

    def __init__(self) -> None:
        self.left = SAMPLES_PER_TICK

    def refill(self) -> None:
        """Start a new tick."""
        self.left = SAMPLES_PER_TICK


def read_state(files: OpenFiles, stat: Stat | None) -> tuple[ProcessState, str]:
    """Return the main thread's state and the kernel function in which it sleeps."""
    state = ProcessState(stat.state) if stat is not None else ProcessState.GONE
    try:
        wchan = files.read("wchan").decode("ascii", "replace").strip()
    except OSError:
        wchan = ""
    return state, "" if wchan in NO_WAIT else wchan[:MAX_NAME]


def read_counters(files: OpenFiles, stat: Stat | None, now: float) -> Counters | None:
    """Return CPU seconds and storage bytes; None if the process has ended."""
    if stat is None:
        return None
    read_bytes = write_bytes = None
    with contextlib.suppress(OSError, ValueError):
        read_bytes, write_bytes = parse_io(files.read("io"))
    return Counters(at=now, cpu_s=stat.cpu_s, read_bytes=read_bytes, write_bytes=write_bytes)


def parse_io(raw: bytes) -> tuple[int, int]:
    """Return read_bytes and write_bytes of /proc/PID/io: its fifth and sixth line.

    They are found by place and not by name, because this file is read for every worker of the node.
    """
    lines = raw.split(b"\n")
    if len(lines) < 6 or not lines[4].startswith(b"read_bytes: "):
        raise ValueError(f"invalid /proc/PID/io, see proc(5): {raw!r}")
    return int(lines[4][12:]), int(lines[5][13:])


def rates_between(before: Counters, after: Counters) -> Movement:
    """Return the rates per second between two moments."""
    elapsed = after.at - before.at
    if elapsed <= 0:
        return Movement()
    return Movement(
        cpu_cores=max(0.0, after.cpu_s - before.cpu_s) / elapsed,
        write_bytes_per_s=_rate(before.write_bytes, after.write_bytes, elapsed),
        read_bytes_per_s=_rate(before.read_bytes, after.read_bytes, elapsed),
        io_readable=after.read_bytes is not None,
    )


def _rate(before: int | None, after: int | None, elapsed: float) -> float:
    return max(0, after - before) / elapsed if before is not None and after is not None else 0.0


def _measured_at(meter: _Meter) -> float:
    return meter.last.at if meter.last is not None else 0.0


def _measure(meter: _Meter, stat: Stat | None) -> None:
    counters = read_counters(meter.files, stat, time.monotonic())
    if counters is not None and meter.last is not None:
        meter.rates = rates_between(meter.last, counters)
    elif counters is None:
        meter.rates = Movement()
    meter.last = counters or meter.last


def _sum(meters: list[_Meter]) -> Movement:
    rates = [meter.rates for meter in meters if meter.last is not None]
    return Movement(
        cpu_cores=round(sum(rate.cpu_cores for rate in rates), 4),
        write_bytes_per_s=round(sum(rate.write_bytes_per_s for rate in rates)),
        read_bytes_per_s=round(sum(rate.read_bytes_per_s for rate in rates)),
        io_readable=all(rate.io_readable for rate in rates),
    )
