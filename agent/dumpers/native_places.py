"""Dumper: where the training thread of a rank is in native code, by the names of libraries.

py-spy shows the line of the program. It does not show whether the thread waits for a device there,
computes in a library, or runs Python: a wait for a device has no Python frame and often uses 100 %
CPU. The libraries on the native stack show it, without names of functions.

A child process reads program counters and their callers. Program counters decide first: what a
thread executes most of the time counts, not what called it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from agent.children import ChildRunner, Program
from agent.dumpers.dumper import RanksOfRound, Step
from agent.dumpers.native_child import BACKWARD_THREAD, LEAST_SAMPLES
from agent.dumpers.native_libraries import (
    COMPILER,
    DEVICE,
    DEVICE_OR_WORK,
    GENERATED,
    GLUE,
    LIBC,
    NATIVE,
    PYTHON,
    class_of,
)
from agent.procfs import Proc
from watchtower.wire.bounds import MAX_NAME
from watchtower.wire.dumps import MAX_LIBRARIES, NativeKind, NativePlace
from watchtower.wire.report import ProcessState
from watchtower.writing.printable import printable

log = logging.getLogger(__name__)

PLACES_DEADLINE_S = 4.5
"""Seconds for all ranks of a round, with all children."""

CHILD_DEADLINE_S = 3.0
"""Seconds of one child: 50 ms for blocked threads, and 300 ms for running ones. With little CPU,
running ones take 1.5 s. The rest is enough for a second child."""

MAX_PLACES_CHILDREN = 2
"""Children of one round. The second one reads what the first one had not when a process hung it."""

MAX_NATIVE_OUTPUT_BYTES = 1 << 20
"""Bytes of a round: a thousand ranks with some threads have 500 kB."""

PYTHON_SHARE = 0.2
"""A running thread with this share of its samples in the interpreter runs Python. A thread that
spins in a native wait has none there."""

DEVICE_SHARE = 0.2
"""Share of the samples in a device library that shows a wait for the device, also if no device
library is on the usual stack. The driver reads the clock for most of a wait."""

STRAY_SHARE = 0.05
"""Samples outside of the C library and the device libraries that a device wait may have."""

ENGINE = "libtorch"
"""The main thread sleeps in these libraries while another thread runs backward."""


class ThreadSamples(msgspec.Struct):
    """One thread, as the child prints it."""

    tid: int
    name: str = ""
    running: bool = False
    leaves: dict[str, int] = {}
    chain: list[str] = []
    failure: str = ""
    run_ns: int = -1
    switches: int = -1
    ends_in_s: float | None = None


class ProcessSamples(msgspec.Struct):
    """A line of the child: a process that it begins to read, or with `threads`, its answer."""

    pid: int
    threads: list[ThreadSamples] | None = None


NATIVE_CHILD = Program(
    name="agent.dumpers.native_child",
    answers=msgspec.json.Decoder(ProcessSamples),
    purpose="native places cannot be sampled",
    max_output_bytes=MAX_NATIVE_OUTPUT_BYTES,
)


READ_NATIVELY = (ProcessState.RUNNING, ProcessState.SLEEPING, ProcessState.IDLE)
"""In other states a read of the memory may hang, or nothing is to be learned from it."""


class NativePlaces:
    """Samples the training threads of ranks."""

    name, at_once, needs_stacks = "native", 1, False

    def __init__(self, proc: Proc, runner: ChildRunner) -> None:
        self._proc, self._runner = proc, runner

    def plan(self, ranks: RanksOfRound) -> Sequence[Step]:
        """Return one step: a child reads all ranks."""
        return [partial(self._fill, ranks)]

    def _fill(self, ranks: RanksOfRound) -> None:
        live = {
            tree.process.pid: tree
            for tree in ranks.trees
            if tree.process.kernel.state in READ_NATIVELY
        }
        for pid, place in self.sample(list(live), ranks.owner).items():
            live[pid].evidence["native"] = place

    def sample(self, pids: Sequence[int], owner: str) -> dict[int, NativePlace]:
        """Return the places of the training threads of these processes, as far as known."""
        found = self._run({pid: str(pid) for pid in pids}, owner)
        places = {pid: find_place(threads) for pid, threads in found.items()}
        return {pid: place for pid, place in places.items() if place is not None}

    def sample_threads(
        self, tids: Mapping[int, Sequence[int]], owner: str
    ) -> dict[int, dict[int, NativePlace]]:
        """Return the places of these threads, by pid and id, as far as known."""
        words = {pid: f"{pid}:{','.join(map(str, named))}" for pid, named in tids.items()}
        places: dict[int, dict[int, NativePlace]] = {}
        for pid, threads in self._run(words, owner).items():
            found = ((thread.tid, classify(thread)) for thread in threads)
            places[pid] = {tid: place for tid, place in found if place is not None}
        return places

    def _run(self, words: Mapping[int, str], owner: str) -> dict[int, list[ThreadSamples]]:
        """Return the threads of each process that a child could read. `words`: by pid."""
        left, found = dict(words), dict[int, list[ThreadSamples]]()
        deadline = time.monotonic() + PLACES_DEADLINE_S
        for _ in range(MAX_PLACES_CHILDREN):
            limit_s = min(CHILD_DEADLINE_S, deadline - time.monotonic())
            if not left or limit_s <= 0:
                break
            words_left = [self._proc.path, *left.values()]
            answers = self._runner.ask(NATIVE_CHILD, words_left, limit_s, owner)
            read = {each.pid: each.threads for each in answers.found if each.threads is not None}
            found |= {pid: threads for pid, threads in read.items() if pid in left}
            begun = next((each.pid for each in answers.found[-1:] if each.threads is None), None)
            if not answers.is_late or begun not in left:
                break
            # This process may have hung the child. Those that were not answered may be read.
            left = {pid: word for pid, word in left.items() if pid not in read and pid != begun}
        return found


def find_place(threads: Sequence[ThreadSamples]) -> NativePlace | None:
    """Return the place of the training thread: main, or a thread of backward if main waits for it.

    None if it is not known.
    """
    if not threads:
        return None
    place = classify(threads[0])
    if place is None or place.running or not _is_in_engine(place):
        return place
    backward = [thread for thread in threads[1:] if thread.name.startswith(BACKWARD_THREAD)]
    others = [found for each in backward if (found := classify(each)) is not None]
    # A thread of the engine without work sleeps in the engine, as main does.
    return next((each for each in others if not _is_in_engine(each)), place)


def _is_in_engine(place: NativePlace) -> bool:
    return place.kind is NativeKind.NATIVE and place.library.startswith(ENGINE)


def classify(thread: ThreadSamples) -> NativePlace | None:
    """Return the place of one thread; None without enough samples."""
    if not thread.leaves or sum(thread.leaves.values()) < (LEAST_SAMPLES if thread.running else 1):
        return None
    kind, library = (
        _classify_running(thread.leaves, thread.chain)
        if thread.running
        else _classify_blocked(thread.chain)
    )
    return NativePlace(
        kind=kind,
        library=printable(library, MAX_NAME),
        running=thread.running,
        thread=printable(thread.name, MAX_NAME),
        libraries=tuple(printable(each, MAX_NAME) for each in thread.chain[:MAX_LIBRARIES]),
        run_ns=thread.run_ns,
        switches=thread.switches,
        ends_in_s=thread.ends_in_s,
    )


def _classify_running(leaves: Mapping[str, int], chain: Sequence[str]) -> tuple[NativeKind, str]:
    total = sum(leaves.values())
    by_class: dict[str, dict[str, int]] = {}
    for name, count in leaves.items():
        by_class.setdefault(class_of(name), {})[name] = count

    def share(*classes: str) -> float:
        return sum(sum(by_class.get(each, {}).values()) for each in classes) / total

    if share(PYTHON) >= PYTHON_SHARE:
        return NativeKind.PYTHON, _most(by_class[PYTHON])
    often = list(by_class[DEVICE]) if share(DEVICE) >= DEVICE_SHARE else []
    device = next((name for name in (*often, *chain) if class_of(name) == DEVICE), "")
    if device and share(LIBC, DEVICE) >= 1 - STRAY_SHARE:
        return NativeKind.DEVICE_WAIT, device
    kind = max(_WORK, key=lambda kind: share(*_WORK[kind]))
    libraries = {name: n for each in _WORK[kind] for name, n in by_class.get(each, {}).items()}
    return (kind, _most(libraries)) if libraries else _first_caller(chain)


def _classify_blocked(chain: Sequence[str]) -> tuple[NativeKind, str]:
    kind, library = _first_caller(chain)
    if class_of(library) == DEVICE_OR_WORK:
        return NativeKind.DEVICE_WAIT, library
    return kind, library


def _first_caller(chain: Sequence[str]) -> tuple[NativeKind, str]:
    """Return the first library that is neither the C library nor glue."""
    for name in chain:
        kind = class_of(name)
        if kind not in (LIBC, GLUE):
            return _KINDS.get(kind, NativeKind.NATIVE), name
    return NativeKind.LIBC, chain[0] if chain else ""


_KINDS = {
    PYTHON: NativeKind.PYTHON,
    DEVICE: NativeKind.DEVICE_WAIT,
    COMPILER: NativeKind.COMPILER,
    GENERATED: NativeKind.GENERATED,
}


_WORK = {
    NativeKind.COMPILER: (COMPILER, DEVICE_OR_WORK),
    NativeKind.NATIVE: (NATIVE, GLUE),
    NativeKind.GENERATED: (GENERATED,),
}
"""Classes of libraries by the kind of work. The kind with most samples counts."""


def _most(counts: Mapping[str, int]) -> str:
    return max(counts, key=lambda name: counts[name])


RUNS_GRACE_S = 2.0
"""Seconds for the start of the child and for the mappings, besides those of the samples."""

MAX_RUNS_OUTPUT_BYTES = 1 << 18
"""Bytes of an output: more than of a thousand ranks."""


class Run(msgspec.Struct):
    """A line of the child."""

    pid: int
    ran_python: bool


RUNS_CHILD = Program(
    name="agent.dumpers.python_runs_child",
    answers=msgspec.json.Decoder(Run),
    purpose="it is not known which ranks run Python",
    max_output_bytes=MAX_RUNS_OUTPUT_BYTES,
)


class PythonRuns:
    """Finds which training processes ran Python between two rounds.

    A job whose hosts wait for their devices is at the same line in most dumps, whether it trains or
    hangs. But a wait for a device does not run Python: a rank that waits for its device in both
    rounds, and ran Python between them, has ended a wait.
    """

    def __init__(self, proc: Proc, runner: ChildRunner) -> None:
        self._proc, self._runner = proc, runner

    def find(self, pids: Sequence[int], seconds: float, owner: str) -> dict[int, bool]:
        """Return which of these processes ran Python within the next seconds, as far as known."""
        words = [self._proc.path, f"{seconds:.3f}", *map(str, pids)]
        answers = self._runner.ask(RUNS_CHILD, words, seconds + RUNS_GRACE_S, owner)
        return {run.pid: run.ran_python for run in answers.found if run.pid in frozenset(pids)}
