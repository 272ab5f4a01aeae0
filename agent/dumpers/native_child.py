"""Samples where threads are in native code, in a separate process that can be abandoned.

The arguments are the path of /proc and processes. A line {"pid": 4711} is printed before a process
is read, so that the last one names the process whose read hangs. As soon as its threads are known,
a second line answers the process: {"pid": 4711, "threads": [{"tid": 4711, "name": "", "running":
false, "leaves": {"libc.so.6": 1}, "chain": ["libc.so.6", "libpython3.11.so.1.0"], "failure": ""}]}.

A process is a pid: its threads are main and those of torch's engine. Or it is "4711:4713,4720", and
its threads are these.

A blocked thread: the last two words of /proc/PID/task/TID/syscall are its stack pointer and program
counter. A running thread: samples of the software clock of perf. The target is neither stopped nor
attached to. Of its memory, only names of mappings and the end of a timed wait are printed.

Reading mappings or memory takes a lock of the target and may hang, so the agent does it here. A
process whose thread stays in state D is not read. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from agent.dumpers.perf_clock import PerfClock, PerfError, Sample
from agent.dumpers.unwinding import STACK_POINTER, Read, Unwinder
from agent.memory import GENERATED, read_maps, read_memory

CLOCK_NANOSLEEP, FUTEX = (115, 98) if platform.machine() == "aarch64" else (230, 202)
TIMER_ABSTIME = 1
FUTEX_COMMAND, FUTEX_CLOCK_REALTIME = 0x7F, 0x100
FUTEX_WAIT_BITSET, FUTEX_LOCK_PI, FUTEX_LOCK_PI2 = 9, 6, 13

CLOCKS = {0: time.CLOCK_REALTIME, 1: time.CLOCK_MONOTONIC, 7: time.CLOCK_BOOTTIME}

MAX_LEFT_S = 1e9
"""Seconds, thirty years: programs that wait without an end often give some large time."""


def find_end(words: Sequence[bytes], read: Read) -> float | None:
    """Return the seconds until a call ends by itself; None if it does not, or that is not known.

    Only calls with a time of day or of the clock are read: a relative timeout does not show when
    the call began. Sources: futex(2), clock_nanosleep(2), and the system call tables of Linux.

    `words`: those of /proc/PID/task/TID/syscall, with the number and six arguments. Raises
    ValueError if they are no numbers.
    """
    if len(words) < 9:
        return None
    number, (first, second, third, fourth) = int(words[0]), [int(each, 16) for each in words[1:5]]
    if number == CLOCK_NANOSLEEP and second & TIMER_ABSTIME and first in CLOCKS:
        return _left(CLOCKS[first], third, read)
    if number != FUTEX or not fourth:
        return None
    command = second & FUTEX_COMMAND
    if command == FUTEX_LOCK_PI:
        return _left(time.CLOCK_REALTIME, fourth, read)
    if command in (FUTEX_WAIT_BITSET, FUTEX_LOCK_PI2):
        is_real = bool(second & FUTEX_CLOCK_REALTIME)
        return _left(time.CLOCK_REALTIME if is_real else time.CLOCK_MONOTONIC, fourth, read)
    return None


def _left(clock: int, at: int, read: Read) -> float | None:
    data = read(at, 16)
    if len(data) < 16:
        return None
    seconds, nanoseconds = struct.unpack("=qq", data)
    left = float(seconds + nanoseconds * 1e-9 - time.clock_gettime(clock))
    return left if 0 < left <= MAX_LEFT_S else None


ENOUGH_SAMPLES = 24
LEAST_SAMPLES = 4
"""With fewer samples, the place of a running thread is not known."""

USUAL_SAMPLING_S, LONGEST_SAMPLING_S = 0.25, 1.5
"""Samples stop when each thread has enough. After the first time, the least number is enough: a
thread of low priority gets little CPU on a busy machine."""

POLL_S = 0.01

MAX_CHAIN = 8
"""Names of libraries from the innermost frame on."""

MAX_THREADS = 512
"""Threads of a process whose names are read."""

MAX_BACKWARD_THREADS = 4
BACKWARD_THREAD = "pt_autograd_"
"""torch runs backward in threads with these names. The main thread sleeps meanwhile."""

READABLE = ("R", "S", "I")
"""States of a thread that is read. In D a read of its memory may hang, in T nothing moves."""

STATE = "state"
"""Failure of a thread in another state."""

PAUSES_S = (0.0, 0.02, 0.08)
"""Seconds before each try to read a process. Most threads in state D leave it at once: one that
maps and unmaps memory is in D in up to 6 % of the samples."""

PROC = "/proc"
"""Where /proc is mounted: an argument of the child."""


def merge(names: Iterable[str]) -> list[str]:
    """Return the names without repeats in a row, at most `MAX_CHAIN`."""
    chain: list[str] = []
    for name in names:
        if not chain or chain[-1] != name:
            chain.append(name)
            if len(chain) == MAX_CHAIN:
                break
    return chain


class Process:
    """One process: its mappings and its memory."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.maps = read_maps(f"{PROC}/{pid}")
        self._unwinder = Unwinder(self.maps, self.read)
        try:
            read_memory(pid, 0, 1)
        except OSError as error:
            if error.errno != errno.EFAULT:  # nothing is mapped at address 0
                raise

    def read(self, address: int, size: int) -> bytes:
        """Read memory; empty where nothing can be read."""
        try:
            return read_memory(self.pid, address, size)
        except (OSError, OverflowError):
            return b""

    def find_chain(self, pc: int, registers: dict[int, int], stack: bytes | None) -> list[str]:
        """Return the names of the mappings of a place and its callers, innermost first.

        `stack`: a copy from the stack pointer on; None to read the memory.
        """
        start = registers[STACK_POINTER]

        def read_copy(address: int, size: int) -> bytes:
            assert stack is not None
            at = address - start
            return stack[at : at + size] if at >= 0 else b""

        read = self.read if stack is None else read_copy
        places = self._unwinder.unwind(pc, registers, read)
        return merge(self.maps.name_of(place) or GENERATED for place in places)


class Thread:
    """One thread to sample, with its samples so far."""

    def __init__(self, pid: int, tid: int, name: str = "") -> None:
        self.pid, self.tid, self.name = pid, tid, name
        self.running = False
        self.leaves = Counter[str]()
        self.chains = Counter[tuple[str, ...]]()
        self.failure = ""
        self.run_ns = self.switches = -1
        """Nanoseconds on a CPU and number of context switches, since the thread began."""
        self.ends_in_s: float | None = None
        """Seconds until the call that it is blocked in ends by itself."""

    def add(self, chain: Sequence[str]) -> None:
        """Count one sample."""
        self.leaves[chain[0]] += 1
        self.chains[tuple(chain)] += 1

    def answer(self) -> dict[str, object]:
        """Return what is printed."""
        chain = self.chains.most_common(1)[0][0] if self.chains else ()
        return {
            "tid": self.tid,
            "name": self.name,
            "running": self.running,
            "leaves": dict(self.leaves.most_common(MAX_CHAIN)),
            "chain": list(chain),
            "failure": self.failure,
            "run_ns": self.run_ns,
            "switches": self.switches,
            "ends_in_s": self.ends_in_s,
        }


def is_readable(folder: str) -> bool:
    """Return whether the state of a process or thread allows to read its memory.

    `folder`: its folder in /proc. Raises OSError.
    """
    stat = _read(f"{folder}/stat")
    state = stat.rpartition(b")")[2].split()[:1]
    return bool(state) and state[0].decode() in READABLE


def folder_of(thread: Thread) -> str:
    """Return the folder of a thread in /proc."""
    return f"{PROC}/{thread.pid}/task/{thread.tid}"


def read_blocked(process: Process, thread: Thread) -> None:
    """Read the place of a blocked thread, or find that it runs."""
    folder = folder_of(thread)
    if not is_readable(folder):
        thread.failure = STATE
        return
    _read_counters(thread, folder)
    words = _read(f"{folder}/syscall").split()
    if words[:1] == [b"running"]:
        thread.running = True
    elif len(words) < 3:
        thread.failure = "syscall"
    else:
        thread.ends_in_s = find_end(words, process.read)
        registers = {STACK_POINTER: int(words[-2], 16)}
        thread.add(process.find_chain(int(words[-1], 16), registers, None))


def _read_counters(thread: Thread, folder: str) -> None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        thread.run_ns = int(_read(f"{folder}/schedstat").split()[0])
        lines = _read(f"{folder}/status").split(b"\n")
        counts = [int(line.split()[1]) for line in lines if b"_ctxt_switches:" in line]
        thread.switches = sum(counts) if len(counts) == 2 else -1


def _read(path: str, limit: int = 8192) -> bytes:
    with open(path, "rb", buffering=0) as file:
        parts = []
        while limit > 0 and (part := file.read(min(limit, 65536))):
            parts.append(part)
            limit -= len(part)
    return b"".join(parts)


def sample(threads: Sequence[tuple[Process, Thread]]) -> dict[Thread, list[Sample]]:
    """Return samples of all running threads, taken at the same time."""
    clocks: list[tuple[Process, Thread, PerfClock]] = []
    for process, thread in threads:
        try:
            clocks.append((process, thread, PerfClock(thread.tid)))
        except PerfError as error:
            thread.failure = f"perf: {error}"
    wait_for_samples([clock for *_, clock in clocks])
    return {thread: clock.close() for _, thread, clock in clocks}


def add_samples(process: Process, thread: Thread, samples: Sequence[Sample]) -> None:
    """Find the places of a running thread in its samples."""
    for each in samples[:ENOUGH_SAMPLES]:
        thread.add(process.find_chain(each.pc, each.registers, each.stack))
    if len(samples) < LEAST_SAMPLES:
        read_again(process, thread)


def wait_for_samples(clocks: Sequence[PerfClock]) -> None:
    """Wait until each clock has enough samples, as far as there is time."""
    began = time.monotonic()
    while (passed_s := time.monotonic() - began) < LONGEST_SAMPLING_S:
        wanted = ENOUGH_SAMPLES if passed_s < USUAL_SAMPLING_S else LEAST_SAMPLES
        if all(clock.count() >= wanted for clock in clocks):
            return
        time.sleep(POLL_S)


def read_again(process: Process, thread: Thread) -> None:
    """Drop the few samples of a thread that hardly ran. If it is blocked now, that is its place."""
    thread.leaves.clear()
    thread.chains.clear()
    thread.running = False
    with _failing(thread):
        read_blocked(process, thread)


def find_backward_threads(pid: int) -> list[tuple[int, str]]:
    """Return the threads in which torch runs backward, with their names."""
    found = []
    for tid in sorted(map(int, os.listdir(f"{PROC}/{pid}/task")))[:MAX_THREADS]:
        with contextlib.suppress(OSError):
            name = _read(f"{PROC}/{pid}/task/{tid}/comm", 64).decode("utf-8", "replace").strip()
            if name.startswith(BACKWARD_THREAD):
                found.append((tid, name))
    return found[:MAX_BACKWARD_THREADS]


def read_threads(process: Process, threads: Sequence[Thread]) -> list[Thread]:
    """Read these threads of a process. If that is main alone, and it is blocked, add the threads of
    backward."""
    found = list(threads)
    for thread in threads:
        with _failing(thread):
            read_blocked(process, thread)
    if [thread.tid for thread in threads] == [process.pid] and not threads[0].running:
        with _failing(threads[0]):
            for tid, name in find_backward_threads(process.pid):
                found.append(other := Thread(process.pid, tid, name))
                with _failing(other):
                    read_blocked(process, other)
    return found


@contextlib.contextmanager
def _failing(*threads: Thread) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        text = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error)
        for thread in threads:
            thread.failure = text


def read_process(threads: Sequence[Thread], opened: dict[int, Process]) -> list[Thread]:
    """Read these threads of a process, which is added to `opened` if its state allows to read it.

    Returns them, or with the threads of backward.
    """
    pid = threads[0].pid
    with _failing(*threads):
        if pid not in opened and all(is_readable(folder_of(thread)) for thread in threads):
            opened[pid] = Process(pid)
        if pid in opened:
            return read_threads(opened[pid], threads)
        for thread in threads:
            thread.failure = STATE
    return list(threads)


def sample_processes(
    pids: Sequence[int], tids: Mapping[int, Sequence[int]] | None = None
) -> Iterator[tuple[int, list[Thread] | None]]:
    """Yield each process before it is read, with None, and with its threads when they are known.

    `tids`: threads to read, by pid; without any, the main thread, and the threads of backward.
    """
    found: dict[int, list[Thread]] = {}
    opened: dict[int, Process] = {}
    left = list(pids)
    for pause_s in PAUSES_S:
        time.sleep(pause_s if left else 0.0)
        for pid in left:
            yield pid, None
            threads = [Thread(pid, tid) for tid in (tids or {}).get(pid, ()) or (pid,)]
            found[pid] = read_process(threads, opened)
            if not any(each.running or each.failure == STATE for each in found[pid]):
                yield pid, found.pop(pid)
        left = [pid for pid in left if any(t.failure == STATE for t in found.get(pid, ()))]
    samples = sample([(opened[pid], t) for pid in found for t in found[pid] if t.running])
    for pid, threads in found.items():
        yield pid, None
        for thread in threads:
            if thread in samples:
                add_samples(opened[pid], thread, samples[thread])
        yield pid, threads


def main() -> None:
    """Answer every question."""
    global PROC
    PROC, *words = sys.argv[1:]
    tids: dict[int, list[int]] = {}
    for word in words:
        pid, _, named = word.partition(":")
        tids[int(pid)] = [int(tid) for tid in named.split(",") if tid]
    for number, threads in sample_processes(list(tids), tids):
        line: dict[str, object] = {"pid": number}
        if threads is not None:
            line["threads"] = [thread.answer() for thread in threads]
        print(json.dumps(line), flush=True)
