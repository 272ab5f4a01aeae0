"""Samples where threads are in native code, in a separate process that can be abandoned.

The arguments are the path of /proc and pids. Each printed line answers one pid, in the same order:
a list of its threads, the main thread first, such as {"tid": 4711, "name": "", "running": false,
"leaves": {"libc.so.6": 1}, "chain": ["libc.so.6", "libpython3.11.so.1.0"], "failure": ""}.

A blocked thread: the last two words of /proc/PID/task/TID/syscall are its stack pointer and program
counter. A running thread: samples of the software clock of perf, which count only while it runs in
user space. In both cases words of the stack that point into executable mappings are likely return
addresses. The target is neither stopped nor attached to, and only names of mappings are printed.

Reading mappings or memory takes a lock of the target and may hang, so the agent does it here.
Threads in state D are never read. Standard library only.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import json
import mmap
import os
import platform
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MAX_MAPS_BYTES = 8 << 20
"""Bytes of one memory map. A process with torch has 60 kB, one with many files some hundred."""

STACK_BYTES = 4096
"""Bytes read of the stack of a blocked thread: some 30 native frames."""

SAMPLED_STACK_BYTES = 1024
"""Bytes of stack in each sample of a running thread."""

PERIOD_NS = 500_000
"""Nanoseconds of CPU time between two samples of a running thread."""

ENOUGH_SAMPLES = 24
LONGEST_SAMPLING_S = 0.25
"""Samples stop when each thread has enough, or at this time: a thread may get little CPU."""

POLL_S = 0.01
RING_PAGES = 32
"""Pages of a ring buffer, a power of two: some 100 samples."""

MAX_CHAIN = 8
"""Names of libraries from the innermost frame on."""

MAX_THREADS = 512
"""Threads of a process whose names are read."""

MAX_BACKWARD_THREADS = 4
BACKWARD_THREAD = "pt_autograd_"
"""torch runs backward in threads with these names. The main thread sleeps meanwhile."""

READABLE = ("R", "S", "I")
"""States of a thread that is read. In D a read of its memory may hang, in T nothing moves."""

GENERATED = "[generated]"
"""Executable memory without a file: code made at run time."""

OF_THE_KERNEL = ("[vdso]", "[vsyscall]", "[uprobes]")
"""Mappings without a file that are not generated: a process can name its own "[anon:NAME]"."""

NOT_FILES = ("/memfd:", "/dev/zero", "/SYSV")
"""Beginnings of paths of memory without a file."""

DELETED = " (deleted)"
"""What the kernel adds to the path of a library that was replaced since it was loaded."""

PROC = "/proc"
"""Where /proc is mounted: an argument of the child."""


class Mapping(NamedTuple):
    """One executable part of an address space."""

    start: int
    end: int
    name: str


class Maps:
    """The executable mappings of a process."""

    def __init__(self, text: str) -> None:
        self._items = sorted(_parse_maps(text))
        self._starts = [item.start for item in self._items]

    def name_of(self, address: int) -> str:
        """Return the name of the mapping that contains an address; empty if none does."""
        at = bisect.bisect_right(self._starts, address) - 1
        return self._items[at].name if at >= 0 and address < self._items[at].end else ""

    def names_in(self, stack: bytes) -> Iterator[str]:
        """Yield the names of the mappings that words of a stack point into, innermost first."""
        for (word,) in struct.iter_unpack("=Q", stack[: len(stack) & ~7]):
            if name := self.name_of(word):
                yield name


def _parse_maps(text: str) -> Iterator[Mapping]:
    for line in text.split("\n"):
        fields = line.split(None, 5)
        if len(fields) < 5 or "x" not in fields[1]:
            continue
        start, _, end = fields[0].partition("-")
        path = fields[5] if len(fields) > 5 else ""
        with contextlib.suppress(ValueError):
            yield Mapping(int(start, 16), int(end, 16), _name(path))


def _name(path: str) -> str:
    """Return the base name of a mapping, with its package: "numpy.libs/libopenblas.so"."""
    if path in OF_THE_KERNEL:
        return path
    if not path.startswith("/") or path.startswith(NOT_FILES):
        return GENERATED
    folder, name = os.path.split(path.removesuffix(DELETED))
    package = next((p for p in reversed(folder.split("/")) if p.endswith(".libs")), "")
    return f"{package}/{name}" if package else name


def merge(names: Iterator[str]) -> list[str]:
    """Return the names without repeats in a row, at most `MAX_CHAIN`."""
    chain: list[str] = []
    for name in names:
        if not chain or chain[-1] != name:
            chain.append(name)
            if len(chain) == MAX_CHAIN:
                break
    return chain


class Thread:
    """One thread to sample, with its samples so far."""

    def __init__(self, pid: int, tid: int) -> None:
        self.pid, self.tid = pid, tid
        self.name = ""
        self.running = False
        self.leaves = Counter[str]()
        self.chains = Counter[tuple[str, ...]]()
        self.failure = ""
        self.run_ns = self.switches = -1
        """Nanoseconds on a CPU and number of context switches, since the thread began."""
        self.maps: Maps | None = None

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
        }


def read_blocked(thread: Thread) -> None:
    """Read the place of a blocked thread, or find that it runs."""
    folder = f"{PROC}/{thread.pid}/task/{thread.tid}"
    state = _read(f"{folder}/stat").rpartition(b")")[2].split()[:1]
    if not state or state[0].decode() not in READABLE:
        thread.failure = "state"
        return
    _read_counters(thread, folder)
    words = _read(f"{folder}/syscall").split()
    if words[:1] == [b"running"]:
        thread.running = True
    elif len(words) < 3:
        thread.failure = "syscall"
        return
    if thread.maps is None:
        text = _read(f"{PROC}/{thread.pid}/maps", MAX_MAPS_BYTES)
        thread.maps = Maps(text.decode("utf-8", "replace"))
    if not thread.running:
        stack_at, counter = int(words[-2], 16), int(words[-1], 16)
        leaf = thread.maps.name_of(counter) or GENERATED
        thread.leaves[leaf] += 1
        with open(f"{PROC}/{thread.pid}/mem", "rb", buffering=0) as memory:
            stack = os.pread(memory.fileno(), STACK_BYTES, stack_at)
        thread.chains[tuple(merge(_with_leaf(leaf, thread.maps.names_in(stack))))] += 1


def _read_counters(thread: Thread, folder: str) -> None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        thread.run_ns = int(_read(f"{folder}/schedstat").split()[0])
        lines = _read(f"{folder}/status").split(b"\n")
        counts = [int(line.split()[1]) for line in lines if b"_ctxt_switches:" in line]
        thread.switches = sum(counts) if len(counts) == 2 else -1


def _with_leaf(leaf: str, names: Iterator[str]) -> Iterator[str]:
    yield leaf
    yield from names


def _read(path: str, limit: int = 8192) -> bytes:
    with open(path, "rb", buffering=0) as file:
        parts = []
        while limit > 0 and (part := file.read(min(limit, 65536))):
            parts.append(part)
            limit -= len(part)
    return b"".join(parts)


class PerfError(OSError):
    """The kernel does not allow to sample this thread."""


_CALL_NUMBER = {"x86_64": 298, "aarch64": 241}
_SOFTWARE, _TASK_CLOCK = 1, 1
_IP, _STACK_USER = 1 << 0, 1 << 13
_EXCLUDE_KERNEL, _EXCLUDE_HYPERVISOR = 1 << 5, 1 << 6
_CLOSE_ON_EXEC = 8
_SAMPLE = 9
_HEADER = struct.Struct("=IHH")
_HEAD_AT = 1024


class Sampler:
    """The software clock of one running thread, and the ring buffer of its samples."""

    def __init__(self, thread: Thread) -> None:
        """Raises PerfError."""
        self._thread = thread
        self._fd = _open_clock(thread.tid)
        page = mmap.PAGESIZE
        try:
            self._ring = mmap.mmap(
                self._fd, (1 + RING_PAGES) * page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE
            )
        except (OSError, ValueError) as error:
            os.close(self._fd)
            raise PerfError(str(error)) from error

    def has_enough(self) -> bool:
        """Return whether there are enough samples."""
        size = _HEADER.size + 24 + SAMPLED_STACK_BYTES
        return self._head() >= ENOUGH_SAMPLES * size

    def close(self) -> None:
        """Take the samples over into the thread, and end the sampling."""
        head, at = min(self._head(), RING_PAGES * mmap.PAGESIZE), 0
        data = self._ring[mmap.PAGESIZE : mmap.PAGESIZE + head]
        while at + _HEADER.size <= len(data):
            kind, _, size = _HEADER.unpack_from(data, at)
            if size < _HEADER.size:
                break
            if kind == _SAMPLE and at + size <= len(data):
                self._take(data[at + _HEADER.size : at + size])
            at += size
        self._ring.close()
        os.close(self._fd)

    def _take(self, body: bytes) -> None:
        maps = self._thread.maps
        if len(body) < 16 or maps is None:
            return
        counter, size = struct.unpack_from("=QQ", body)
        stack = b""
        if size and len(body) >= 24 + size:
            (valid,) = struct.unpack_from("=Q", body, 16 + size)
            stack = body[16 : 16 + min(size, valid)]
        leaf = maps.name_of(counter) or GENERATED
        self._thread.leaves[leaf] += 1
        self._thread.chains[tuple(merge(_with_leaf(leaf, maps.names_in(stack))))] += 1

    def _head(self) -> int:
        (head,) = struct.unpack_from("=Q", self._ring, _HEAD_AT)
        return int(head)


def _open_clock(tid: int) -> int:
    number = _CALL_NUMBER.get(platform.machine())
    if number is None:
        raise PerfError(f"not supported on {platform.machine()}")
    attributes = bytearray(112)
    struct.pack_into(
        "=IIQQQ", attributes, 0, _SOFTWARE, 112, _TASK_CLOCK, PERIOD_NS, _IP | _STACK_USER
    )
    struct.pack_into("=Q", attributes, 40, _EXCLUDE_KERNEL | _EXCLUDE_HYPERVISOR)
    struct.pack_into("=I", attributes, 88, SAMPLED_STACK_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(
        number, (ctypes.c_char * 112).from_buffer(attributes), tid, -1, -1, _CLOSE_ON_EXEC
    )
    if fd < 0:
        raise PerfError(os.strerror(ctypes.get_errno()))
    return int(fd)


def find_sampling_error() -> str:
    """Return why this process may not sample running threads; empty if it may."""
    try:
        os.close(_open_clock(0))
    except PerfError as error:
        return str(error)
    return ""


def sample(threads: Sequence[Thread]) -> None:
    """Sample all running threads at the same time."""
    samplers = []
    for thread in threads:
        try:
            samplers.append(Sampler(thread))
        except PerfError as error:
            thread.failure = f"perf: {error}"
    until = time.monotonic() + LONGEST_SAMPLING_S
    while time.monotonic() < until and not all(each.has_enough() for each in samplers):
        time.sleep(POLL_S)
    for each in samplers:
        each.close()


def find_backward_threads(pid: int) -> list[tuple[int, str]]:
    """Return the threads in which torch runs backward, with their names."""
    found = []
    for tid in sorted(map(int, os.listdir(f"{PROC}/{pid}/task")))[:MAX_THREADS]:
        with contextlib.suppress(OSError):
            name = _read(f"{PROC}/{pid}/task/{tid}/comm", 64).decode("utf-8", "replace").strip()
            if name.startswith(BACKWARD_THREAD):
                found.append((tid, name))
    return found[:MAX_BACKWARD_THREADS]


def make_threads(pid: int) -> list[Thread]:
    """Return the main thread of a process, and if that is blocked, the threads of backward."""
    main = Thread(pid, pid)
    threads = [main]
    with _failing(main):
        read_blocked(main)
        for tid, name in [] if main.running else find_backward_threads(pid):
            other = Thread(pid, tid)
            other.name, other.maps = name, main.maps
            with _failing(other):
                read_blocked(other)
            threads.append(other)
    return threads


@contextlib.contextmanager
def _failing(thread: Thread) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        thread.failure = os.strerror(error.errno or 0) if isinstance(error, OSError) else str(error)


def main() -> None:
    """Answer every question: one line with the threads of each process."""
    global PROC
    PROC, *words = sys.argv[1:]
    processes = [make_threads(int(word)) for word in words]
    sample([each for threads in processes for each in threads if each.running])
    for threads in processes:
        print(json.dumps([each.answer() for each in threads]), flush=True)
