"""Reads where the training thread of a rank is in native code, from its dumps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from watchtower.evidence.facts import TextPattern, read_facts, whole
from watchtower.evidence.movement import WORK_S
from watchtower.wire.dumps import (
    NativeKind,
    NativePlace,
    RankDump,
    ThreadDump,
)
from watchtower.wire.report import ProcessState
from watchtower.writing.text import clean

REST_CORES, NS_PER_S = 0.05, 1e9
"""A thread that uses at most this share of a core uses little CPU time: it sleeps or polls."""

CODE = frozenset({NativeKind.PYTHON, NativeKind.NATIVE, NativeKind.GENERATED})
"""Places in which a running thread computes."""

DEVICE_WAIT = "a device wait"
"""How sentences name the call of a rank that waits for its device."""


class _HiddenCall(NamedTuple):
    """A wait for other ranks in native code."""

    library: TextPattern
    caller: TextPattern
    blocked: frozenset[str]
    name: str


_HIDDEN_CALLS = tuple(
    _HiddenCall(
        whole(entry["library"]), whole(entry["caller"]), frozenset(entry["blocked"]), entry["name"]
    )
    for entry in read_facts("native_waits")["wait"]
)

LEAST_GAP_S = 1.0
"""Least seconds between the two rounds of a dump."""


def at_training_thread(dump: RankDump, training: ThreadDump | None) -> RankDump:
    """Return the dump with the place of the thread that trains.

    The agent samples the main thread and, if that is blocked, those it may wait for. Which one
    trains is read from the stacks.
    """
    if training is None or training.main or training.native is None:
        return dump
    return replace(dump, native=replace(training.native, thread=training.name))


def waits_for_device(dumps: Sequence[RankDump]) -> bool:
    """Return whether the last dump shows a wait for a device, asleep or by polling.

    On a busy machine the place of a thread that runs is not sampled now and then. Then the dump
    before decides, if the main thread was at the same line of the program. A rank that ran Python
    since the dump before has ended such a wait since: it may be in the next one, but does not hang.
    """
    last = dumps[-2:]
    if len(last) == 2 and last[1].native is None and _may_run_on(*last):
        last = last[:1]
    native = last[-1].native if last else None
    return native is not None and is_device_wait(native) and not native.ran_python


def is_device_wait(native: NativePlace | None) -> bool:
    """Return whether this is a wait for a device."""
    return native is not None and native.kind is NativeKind.DEVICE_WAIT


def runs_code(native: NativePlace | None) -> bool:
    """Return whether a thread is known to run code that does not wait for a device.

    Of generated code it is not known: a library of a device may have made it.
    """
    if native is None or native.kind is NativeKind.GENERATED:
        return False
    return native.running and native.kind in CODE


def _may_run_on(before: RankDump, after: RankDump) -> bool:
    """Return whether the main thread may still do what it did in the dump before."""
    was, now = ([each for each in dump.threads if each.main] for dump in (before, after))
    return (
        before.native is not None
        and not before.native.thread
        and after.kernel.state is ProcessState.RUNNING
        and [each.digest for each in was] == [each.digest for each in now] != []
        and not any(each.owns_gil for each in now)
    )


def rests(dumps: Sequence[RankDump]) -> bool:
    """Return whether the training thread used little CPU time between the last two dumps, as one
    that sleeps or polls, and nothing that it may wait for runs."""
    if len(dumps) < 2:
        return False
    return used_little_cpu(find_block(dumps[-2]), find_block(dumps[-1]), LEAST_GAP_S)


def used_little_cpu(
    before: NativePlace | None, after: NativePlace | None, interval_s: float
) -> bool:
    """Return whether a thread that was blocked in two dumps used little CPU time between them.

    `interval_s`: the seconds between the dumps.
    """
    if before is None or after is None or before.thread != after.thread or before.run_ns < 0:
        return False
    return 0 <= after.run_ns - before.run_ns <= REST_CORES * NS_PER_S * interval_s


def waits_and_works(dumps: Sequence[RankDump]) -> bool:
    """Return whether the training thread both waited and computed between the last two dumps.

    Its waits end, and it computes for long enough in between to do something. A loop that nothing
    ends does not wait, or computes for microseconds between its waits.
    """
    if len(dumps) < 2:
        return False
    before, after = dumps[-2].native, dumps[-1].native
    if before is None or after is None or before.thread != after.thread:
        return False
    if -1 in (before.run_ns, before.switches, after.run_ns, after.switches):
        return False
    ran_s, waits = (after.run_ns - before.run_ns) / NS_PER_S, after.switches - before.switches
    is_asleep = not (before.running and after.running)
    return is_asleep and waits > 0 and ran_s >= max(REST_CORES * LEAST_GAP_S, WORK_S * waits)


def find_block(dump: RankDump) -> NativePlace | None:
    """Return where the training thread is blocked, if nothing that it may wait for runs.

    It may wait for another Python thread or for a child. Threads without Python are helpers:
    watchdogs, proxies, thread pools.
    """
    native = dump.native
    return None if native is None or native.running or _runs_other_work(dump) else native


def is_same_block(before: NativePlace | None, after: NativePlace | None) -> bool:
    """Return whether a thread was blocked all the time between two dumps."""
    if before is None or after is None:
        return False
    counters = [(each.thread, each.run_ns, each.switches) for each in (before, after)]
    return counters[0] == counters[1] and -1 not in counters[0][1:]


def is_watchdog_blocked(dumps: Sequence[RankDump]) -> bool:
    """Return whether a watchdog of torch has been in one call of the device's driver since the
    dump before. A healthy one calls it ten times a second."""
    last = dumps[-2:]
    return len(last) == 2 and is_same_block(last[0].watchdog, last[1].watchdog)


def find_hidden_call(native: NativePlace | None, wait_class: str) -> str:
    """Return the call in which a blocked thread waits for ranks and which has no Python frame.

    Empty if its place shows none. `wait_class`: class of its wait in the kernel.
    """
    if native is None or native.running or native.library not in native.libraries:
        return ""
    outer = native.libraries[native.libraries.index(native.library) + 1 :]
    caller = next((each for each in outer if each != native.library), "")
    fits = (
        each.name
        for each in _HIDDEN_CALLS
        if wait_class in each.blocked
        and each.library.matches(native.library)
        and each.caller.matches(caller)
    )
    return next(fits, "")


def describe_native(native: NativePlace | None) -> str:
    """Return "polls for its device in libcuda.so.1", or nothing if the stack shows as much."""
    if native is None:
        return ""
    where = f" in {clean(native.library, 64)}" if native.library else ""
    text = {
        NativeKind.DEVICE_WAIT: (
            "polls for its device" if native.running else "waits for its device"
        )
        + where,
        NativeKind.COMPILER: f"compiles for its device{where}",
        NativeKind.NATIVE: ("runs" if native.running else "is blocked") + where,
        NativeKind.GENERATED: "runs generated code",
        NativeKind.PYTHON: "runs Python" if native.running else "",
    }.get(native.kind, "")
    thread = f"{clean(native.thread, 32)} " if native.thread and text else ""
    return thread + text


def _runs_other_work(dump: RankDump) -> bool:
    threads = any(thread.active for thread in dump.threads if not thread.main)
    return threads or any(each.kernel.state is ProcessState.RUNNING for each in dump.children)
