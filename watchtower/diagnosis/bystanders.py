"""Other threads and children of a suspect: which of them it may wait for, as facts to quote.

Most weigh nothing: a thread that stays somewhere need not be the one that is waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.evidence.facts import part
from watchtower.evidence.frames import (
    FrameClass,
    classify_frame,
    last_component,
    name_line,
    read_stack,
)
from watchtower.evidence.kernel import classify_wait
from watchtower.evidence.threads import (
    KnownStack,
    called_by_user,
    class_of,
    find_called,
    find_thread,
    task_of,
)
from watchtower.wire.dumps import ChildDump, RankDump, ThreadDump
from watchtower.wire.report import ProcessState
from watchtower.wire.stacks import Frame
from watchtower.writing.text import clean

MAX_QUOTED_THREADS = 3
"""Threads quoted per rank: a pool's others most often do the same, and the dump has them all."""

STUCK_STATES = frozenset(
    {ProcessState.STOPPED, ProcessState.TRACED, ProcessState.UNINTERRUPTIBLE, ProcessState.ZOMBIE}
)
"""States of a child that delivers nothing."""

IDLE_FUNCTIONS = frozenset({"get", "_worker_loop", "poll", "_poll", "select", "wait", "recv"})
"""A worker whose user code does not run waits for work."""

FROM_PROCESSES = part(
    r"^multiprocessing/(queues|connection|managers|pool)\.py$|^concurrent/futures/process\.py$"
)
"""Files of calls that wait for what another process sends."""

MAX_NAMED_CHILDREN = 3
"""Programs named of those that a rank may wait for."""

THREAD_WAITS = {
    FrameClass.NETWORK: "waits for the network",
    FrameClass.CHILD: "waits for a program it has started",
    FrameClass.THREAD: "waits for another thread",
    FrameClass.SERVER: "waits for clients",
    FrameClass.COLLECTIVE: "waits for other ranks",
    FrameClass.INIT: "waits for other ranks",
}

CHILD_STATES = {
    ProcessState.STOPPED: "is stopped (state T)",
    ProcessState.TRACED: "is held by a tracer (state t)",
    ProcessState.UNINTERRUPTIBLE: "is in uninterruptible sleep (state D)",
    ProcessState.ZOMBIE: "has exited and is not reaped (state Z)",
}

STUCK_WEIGHT, SEEN_WEIGHT = 0.6, 0.3
"""A worker that cannot run, and one that stays in user code."""


@dataclass(frozen=True, slots=True)
class Bystander:
    """Another thread of a suspect."""

    thread: ThreadDump
    known: KnownStack
    stays: bool
    """The dump before shows it there, too."""

    @property
    def is_idle(self) -> bool:
        """Whether a summary can do without it. One that holds the GIL is a cause of its own."""
        return self.thread.owns_gil or self.known.frame_class.traits.is_often_idle

    @property
    def leads_back(self) -> bool:
        """Whether it is the main thread, which waits for the thread that trains."""
        return self.thread.main and self.known.frame_class.traits.waits_for_thread


@dataclass(frozen=True, slots=True)
class Worker:
    """The child that most likely does not deliver."""

    child: ChildDump
    at: str
    """Its place in the user's code, such as "data.py:44 in __getitem__"; may be empty."""

    @property
    def pid(self) -> int:
        """Its process."""
        return self.child.pid

    @property
    def is_dead(self) -> bool:
        """Whether it has ended, and is not reaped."""
        return self.child.kernel.state is ProcessState.ZOMBIE

    @property
    def weight(self) -> float:
        """How much it speaks for a data loader that stalls."""
        return STUCK_WEIGHT if self.child.kernel.state in STUCK_STATES else SEEN_WEIGHT


def find_threads(picture: Picture, position: Position) -> tuple[Bystander, ...]:
    """Return the threads that one may be waited for, the most telling first."""
    dump, stacks = position.last_dump, picture.stacks
    trains = find_thread(dump, stacks, picture.comm_threads) if dump else None
    if dump is None or trains is None or not _waits_for_thread(position, trains):
        return ()
    before = _threads_before(position)
    found = [
        Bystander(thread, known, (thread.name, thread.digest) in before)
        for thread in dump.threads
        if thread is not trains
        and (known := stacks.get(thread.digest)) is not None
        and (known.own or known.frame_class.traits.names_wait)
    ]
    # Main waits for the thread that trains in its place: what it does is quoted in any case.
    found.sort(key=lambda item: (not item.thread.main, _tells_little(item.known)))
    return tuple(found[:MAX_QUOTED_THREADS])


def _waits_for_thread(position: Position, trains: ThreadDump) -> bool:
    """Return whether it may wait for another thread, or main for the one that trains."""
    by_frames = position.frame_class.traits.waits_for_thread
    may_wait = by_frames or position.wait.wait_class == "lock"
    return not trains.main or (position.asleep and may_wait)


def _threads_before(position: Position) -> frozenset[tuple[str, str]]:
    dumps: tuple[RankDump, ...] = position.evidence.dumps[-2:-1]
    return frozenset((thread.name, thread.digest) for dump in dumps for thread in dump.threads)


def _tells_little(known: KnownStack) -> int:
    """Order a thread whose wait has a name before one in user code, and those idle last."""
    if known.frame_class.traits.is_often_idle:
        return 2
    return 1 if known.frame_class is FrameClass.USER else 0


def find_children(picture: Picture, position: Position) -> Worker | tuple[ChildDump, ...] | None:
    """Return what it may wait for: the worker that does not deliver, or programs it has started."""
    dump = position.last_dump
    if dump is None or not dump.children or not position.asleep:
        return None
    called = _called(position)
    if any(FROM_PROCESSES.matches(frame.file) for frame in called):
        return find_stuck_worker(picture.stacks, position)
    by_frames = any(classify_frame(frame) is FrameClass.CHILD for frame in called)
    return dump.children if by_frames or position.wait.wait_class == "child" else None


def find_stuck_worker(stacks: Mapping[str, KnownStack], position: Position) -> Worker | None:
    """Choose the child that cannot run, else one that sits in user code in every dump."""
    dumps = position.evidence.dumps[-2:]
    if not dumps or not dumps[-1].children:
        return None
    before = {child.pid: _digest(child) for dump in dumps[:-1] for child in dump.children}
    workers = [_read(child, before, stacks) for child in dumps[-1].children]
    found = [worker for worker in workers if worker is not None]
    return max(found, key=lambda worker: worker.weight, default=None)


def takes_from_process(position: Position) -> bool:
    """Return whether it sleeps in a call that gets an item from a queue of another process."""
    return position.asleep and any(
        frame.file == "multiprocessing/queues.py" and last_component(frame.function) == "get"
        for frame in _called(position)
    )


def _called(position: Position) -> tuple[Frame, ...]:
    return tuple(called_by_user(position.stack.frames)) if position.stack else ()


def _read(
    child: ChildDump, before: dict[int, str], stacks: Mapping[str, KnownStack]
) -> Worker | None:
    worker = Worker(child, _place_of_work(child, stacks))
    stays = worker.at and before.get(child.pid, "") == _digest(child)
    return worker if child.kernel.state in STUCK_STATES or stays else None


def _digest(child: ChildDump) -> str:
    thread = next((item for item in child.threads if item.main), None)
    return thread.digest if thread else ""


def _place_of_work(child: ChildDump, stacks: Mapping[str, KnownStack]) -> str:
    """Return where the child is, in the user's code or in a library that saves a checkpoint.

    Empty if it only waits for work.
    """
    known = stacks.get(_digest(child))
    if known is None:
        return ""
    stack = known.stack
    # The outermost frame is the program that starts children.
    own = tuple(frame for frame in stack.frames[:-1] if not frame.library)
    if not own and known.reading and known.frame_class is FrameClass.CHECKPOINT:
        return f"{known.reading.what_at} in {known.reading.what}"
    reading = read_stack(own)
    inside = stack.frames[: stack.frames.index(own[0])] if own else ()
    idle = any(last_component(frame.function) in IDLE_FUNCTIONS for frame in inside)
    return "" if reading is None or idle else reading.where


def write_thread(picture: Picture, position: Position) -> str:
    """Return "its thread s3_2 is still at save.py:11 in upload", or nothing."""
    first = find_busy_thread(picture, position)
    return f"its {describe_thread(first)}" if first else ""


def find_busy_thread(picture: Picture, position: Position) -> Bystander | None:
    """Return the thread that a summary names: the first that does not only wait for work."""
    return next((each for each in find_threads(picture, position) if not each.is_idle), None)


def describe_thread(bystander: Bystander) -> str:
    """Return "thread sender is still at log.py:12 in _send; it waits for the network in recv()"."""
    thread, known = bystander.thread, bystander.known
    if known.reading and bystander.leads_back:
        return f"main thread waits for this at {clean(known.reading.where)}"
    name = "main thread" if thread.main else f"thread {clean(thread.name, 64)}"
    stays = "is still" if bystander.stays else "is"
    where = clean(known.reading.where) if known.reading else "an unknown place"
    return f"{name} {stays} at {where}{_write_call(known)}{_write_running(thread)}"


def _write_call(known: KnownStack) -> str:
    frames = known.stack.frames
    called = list(called_by_user(frames)) if known.own else []
    place = find_called(frames) if known.own else None
    waits = place.text if place else THREAD_WAITS.get(known.frame_class, "")
    call = f"{clean(last_component(called[-1].function), 80)}()" if called else ""
    at = f" in {call} at {clean(name_line(called[-1]), 80)}" if called else ""
    return f"; it {waits}{at}" if waits else f",{at}" if at else ""


def _write_running(thread: ThreadDump) -> str:
    if thread.owns_gil:
        return "; it holds the GIL"
    return "; it runs on a CPU" if thread.active else ""


def find_late_thread(
    picture: Picture, late: Position, other: Position, operation: str
) -> Bystander | None:
    """Return the thread of a rank that stays elsewhere while the same thread of another rank is in
    this operation, and the main thread of that rank is not. Null without one.

    Both were started for one task.
    """
    stacks, dump = picture.stacks, late.last_dump
    threads = other.last_dump.threads if other.last_dump is not None else ()
    inside = [
        each for each in threads if each.digest in stacks and _is_in(stacks[each.digest], operation)
    ]
    tasks = {task_of(stacks[each.digest]) for each in inside} - {None}
    if dump is None or not tasks or any(each.main for each in inside):
        return None
    before = _threads_before(late)
    for thread in dump.threads:
        known = stacks.get(thread.digest)
        is_elsewhere = not class_of(thread, stacks).traits.waits_for_ranks
        stays = (thread.name, thread.digest) in before
        if known and stays and is_elsewhere and not thread.main and task_of(known) in tasks:
            return Bystander(thread, known, stays)
    return None


def _is_in(known: KnownStack, operation: str) -> bool:
    is_inside = known.frame_class.traits.waits_for_ranks
    return is_inside and any(last_component(f.function) == operation for f in known.stack.frames)


def write_late_thread(bystander: Bystander) -> str:
    """Return "its thread saver is still at fs.py:5 in open, blocked in openat()"."""
    kernel = bystander.thread.kernel
    wait = classify_wait(kernel).text if kernel is not None else ""
    return ", ".join(filter(None, (f"its {describe_thread(bystander)}", wait)))


def write_child(picture: Picture, position: Position) -> str:
    """Return "it waits for its child 18320 (cat), which is stopped (state T)", or nothing."""
    found = find_children(picture, position)
    return describe_children(found) if found else ""


def describe_children(found: Worker | tuple[ChildDump, ...]) -> str:
    """Return "its worker pid 7 ...", "it waits for its child 7 (cat)" or one of several."""
    if isinstance(found, Worker):
        return f"its worker {describe_worker(found)}"
    named = [describe_program(child) for child in found[:MAX_NAMED_CHILDREN]]
    if len(found) == 1:
        return f"it waits for its child {named[0]}"
    more = len(found) - len(named)
    rest = f"; {more} more" if more else ""
    return f"it waits for one of its children: {'; '.join(named)}{rest}"


def describe_worker(worker: Worker) -> str:
    """Return "pid 4801 is stopped (state T) at data.py:44 in __getitem__"."""
    at = f" at {clean(worker.at)}" if worker.at else ""
    state = CHILD_STATES.get(worker.child.kernel.state)
    if state:
        return f"pid {worker.pid} {state}{at}"
    wait = classify_wait(worker.child.kernel).text
    return f"pid {worker.pid} is {', '.join(filter(None, (at and f'still{at}', wait)))}"


def describe_program(child: ChildDump) -> str:
    """Return "18320 (cat), which is stopped (state T)"."""
    program = clean(child.command, 64)
    name = f"{child.pid} ({program})" if program else str(child.pid)
    wait = classify_wait(child.kernel).text
    says = CHILD_STATES.get(child.kernel.state) or (f"is {wait}" if wait else "")
    return f"{name}, which {says}" if says else name
