"""Finds the thread of a process that trains. This is the main thread in most programs.

What a rank waits for besides other ranks is in a table of calls and kernel waits
(`facts/wait_places.toml`). It gives a text and advice, but not a cause: an empty queue shows where
to search, but not which process is at fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from watchtower.evidence.facts import TextPattern, part, read_facts, whole
from watchtower.evidence.frames import FrameClass, StackReading, last_component, read_stack
from watchtower.evidence.kernel import ASLEEP, WaitReading, classify_wait
from watchtower.evidence.native import at_training_thread, find_hidden_call, waits_for_device
from watchtower.wire.dumps import MASTER_PORT, KernelWait, RankDump, Setting, ThreadDump
from watchtower.wire.sockets import is_server_end, read_listening_port
from watchtower.wire.stacks import Frame, Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitPlace:
    """One entry of the table."""

    text: str
    """Text after "it"; empty if the text of the kernel wait is enough."""
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Called:
    file: TextPattern
    function: TextPattern
    place: WaitPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blocked:
    wait_class: str
    syscalls: frozenset[str]
    place: WaitPlace


def _read_place(entry: dict[str, Any]) -> WaitPlace:
    return WaitPlace(text=entry["text"], advice=entry["advice"])


_TABLE = read_facts("wait_places")
_CALLED = tuple(
    _Called(file=part(entry["file"]), function=whole(entry["function"]), place=_read_place(entry))
    for entry in _TABLE["frame"]
)
_BLOCKED = tuple(
    _Blocked(
        wait_class=entry["class"],
        syscalls=frozenset(entry.get("syscalls", ())),
        place=_read_place(entry),
    )
    for entry in _TABLE["call"]
)


def find_wait_place(
    frames: tuple[Frame, ...], wait: WaitReading, kernel: KernelWait
) -> WaitPlace | None:
    """Return what a sleeping thread waits for; None if no table entry matches."""
    if called := find_called(frames):
        return called
    fits = (item for item in _BLOCKED if item.wait_class == wait.wait_class)
    return next(
        (item.place for item in fits if not item.syscalls or kernel.syscall in item.syscalls), None
    )


def find_called(frames: tuple[Frame, ...]) -> WaitPlace | None:
    """Return what a stack waits for, by the library calls inside the user's innermost frame."""
    called = [found for frame in called_by_user(frames) if (found := _find(frame))]
    return called[-1] if called else None


def called_by_user(frames: tuple[Frame, ...]) -> Iterator[Frame]:
    """Yield the library frames inside the user's innermost frame, innermost first."""
    for frame in frames:
        if not frame.library:
            return
        yield frame


def _find(frame: Frame) -> WaitPlace | None:
    name = last_component(frame.function)
    for item in _CALLED:
        if item.function.matches(name) and item.file.matches(frame.file):
            return item.place
    return None


Function = tuple[str, str]
"""Name and file of a function."""

STARTS_TASKS = part(r"^threading\.py$|^queue\.py$|^concurrent/futures/thread\.py$")
"""Files whose frames are the outermost ones of each thread, whatever its task is."""

POOLS, FUTURES = part(r"^concurrent/futures/thread\.py$"), part(r"^concurrent/futures/_base\.py$")
"""Files whose frames show a task of a pool of threads, and a wait for the result of one."""

PROCESS_POOLS = part(r"^concurrent/futures/process\.py$|^multiprocessing/")
"""Files whose frames show that tasks may run in other processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownStack:
    """A stack and its reading, made once for all ranks with this stack."""

    stack: Stack
    reading: StackReading | None
    own: tuple[Frame, ...]
    """Frames of the user's own code."""

    @property
    def frame_class(self) -> FrameClass:
        """Class of the stack; NONE if the stack could not be read."""
        return self.reading.frame_class if self.reading else FrameClass.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class CommThreads:
    """Threads that call a job's collectives while its main threads wait for them."""

    places: frozenset[tuple[Function, ...]]
    """Stacks in which main threads wait for such a thread, as the user's functions."""
    tasks: frozenset[Function]
    """The tasks of such threads."""


def index_stacks(stacks: Iterable[Stack]) -> dict[str, KnownStack]:
    """Return the readings of these stacks by digest."""
    return {
        stack.digest: KnownStack(
            stack=stack,
            reading=read_stack(stack.frames),
            own=tuple(frame for frame in stack.frames if not frame.library),
        )
        for stack in stacks
    }


def find_thread(
    dump: RankDump, stacks: Mapping[str, KnownStack], comm_threads: CommThreads | None = None
) -> ThreadDump | None:
    """Return the thread that trains: the main one, unless it only waits for another thread.

    * Some programs train in a thread that the main thread joins, or beside a server.
    * A main thread may wait for the end of a task of a library: an asynchronous checkpoint.
    * While the main thread is in backward, hooks run in threads of autograd. Their outermost frame
      is the user's function, not one of `threading`.
    * A main thread at a lock may wait for any thread. It is one of `comm_threads` if other ranks
      wait for such a thread at the same place.

    Returns None if the dump has no threads.
    """
    if len(dump.threads) == 1:
        return dump.threads[0]
    main = next((thread for thread in dump.threads if thread.main), None)
    if main is None:
        return dump.threads[0] if dump.threads else None
    others = [other for other in dump.threads if other is not main and other.digest in stacks]
    users = [other for other in others if stacks[other.digest].own]
    if main.digest not in stacks or (users and not stacks[main.digest].own):
        return next(iter(users), main)
    # A main thread without code of the user runs an installed program: `python -m trainer`.
    frame_class = class_of(main, stacks)
    if frame_class is FrameClass.THREAD:
        joined = _find_joined(stacks[main.digest], others, stacks)
        waiting = (other for other in joined if class_of(other, stacks).traits.waits_for_ranks)
        return next(chain(waiting, joined), main)
    if frame_class is FrameClass.SERVER:
        waiting = (other for other in users if class_of(other, stacks).traits.waits_for_ranks)
        return next(waiting, main)
    if frame_class is FrameClass.LOCK and comm_threads:
        return _find_comm_thread(main, others, stacks, comm_threads) or main
    if frame_class is FrameClass.BACKWARD:
        return next((other for other in users if _is_hook(other, stacks)), main)
    return main


def _find_joined(
    main: KnownStack, others: Sequence[ThreadDump], stacks: Mapping[str, KnownStack]
) -> Sequence[ThreadDump]:
    """Return the threads for whose end a main thread may wait, the most likely one first.

    A future is the result of a task of a pool. `join` waits for a thread that the program began.
    Threads of libraries run beside most programs, so that only two kinds may be joined: those that
    save a checkpoint, and those that wait for other ranks.
    """
    if _has_frame_in(main, FUTURES):
        tasks = [other for other in others if is_task_of_pool(stacks[other.digest])]
        if tasks:
            return tasks
    known = [(other, stacks[other.digest]) for other in others]
    users = [other for other, stack in known if stack.own]
    libraries = [other for other, stack in known if not stack.own and _may_be_joined(stack)]
    return [*users, *libraries]


def _may_be_joined(known: KnownStack) -> bool:
    saves = known.frame_class is FrameClass.CHECKPOINT
    return saves or known.frame_class.traits.waits_for_ranks


def is_task_of_pool(known: KnownStack) -> bool:
    """Return whether a thread of a pool has a task. One that is idle has only the pool's frames."""
    return task_of(known) is not None and _has_frame_in(known, POOLS)


def count_nested_tasks(dump: RankDump, stacks: Mapping[str, KnownStack]) -> int:
    """Return how many tasks of pools of threads wait for tasks, if no task does anything else.

    No thread is free for the tasks that they wait for. 0 if a task may run in another process.
    """
    others = [stacks[t.digest] for t in dump.threads if not t.main and t.digest in stacks]
    if any(_has_frame_in(known, PROCESS_POOLS) for known in others):
        return 0
    tasks = [known for known in others if is_task_of_pool(known)]
    nested = all(known.frame_class is FrameClass.THREAD for known in tasks)
    return len(tasks) if nested and all(_has_frame_in(known, FUTURES) for known in tasks) else 0


def _has_frame_in(known: KnownStack, files: TextPattern) -> bool:
    return any(frame.library and files.matches(frame.file) for frame in known.stack.frames)


def _find_comm_thread(
    main: ThreadDump,
    others: Iterable[ThreadDump],
    stacks: Mapping[str, KnownStack],
    comm_threads: CommThreads,
) -> ThreadDump | None:
    """Return the communication thread for which the main thread waits, if it waits for one."""
    if functions_of(stacks[main.digest]) not in comm_threads.places:
        return None
    making = (other for other in others if task_of(stacks[other.digest]) in comm_threads.tasks)
    return next((t for t in making if not class_of(t, stacks).traits.waits_for_thread), None)


def waits_beside(trains: ThreadDump, dump: RankDump, stacks: Mapping[str, KnownStack]) -> bool:
    """Return whether any thread except `trains` waits in a collective."""
    return any(
        class_of(other, stacks).traits.waits_for_ranks
        for other in dump.threads
        if other.name != trains.name or other.digest != trains.digest
    )


def functions_of(known: KnownStack) -> tuple[Function, ...]:
    """Return the user's own functions of a stack, innermost first."""
    return tuple((frame.function, frame.file) for frame in known.own)


def task_of(known: KnownStack) -> Function | None:
    """Return the function that a thread was started for.

    It is the outermost of the user's own functions, else the outermost function of a library that
    does not start threads. None if the thread has no task now.
    """
    if known.own:
        return known.own[-1].function, known.own[-1].file
    tasks = (f for f in reversed(known.stack.frames) if not STARTS_TASKS.matches(f.file))
    return next(((frame.function, frame.file) for frame in tasks), None)


def class_of(thread: ThreadDump, stacks: Mapping[str, KnownStack]) -> FrameClass:
    """Return the class of a thread's stack, NONE without a stack."""
    known = stacks.get(thread.digest)
    return known.frame_class if known else FrameClass.NONE


def _is_hook(thread: ThreadDump, stacks: Mapping[str, KnownStack]) -> bool:
    """Return whether the thread was not started by Python's `threading`."""
    root = stacks[thread.digest].stack.frames[-1]
    return not last_component(root.function).startswith("_bootstrap")


def was_waiting(dump: RankDump, stacks: Mapping[str, KnownStack]) -> bool | None:
    """Return whether a rank waited for other ranks when it was dumped; None without a stack.

    A wait for the device counts: in a job that queues its collectives, that is how hosts wait. One
    sample does not distinguish a stuck rank from a slow one. Many samples show which rank waits
    least.
    """
    thread = find_thread(dump, stacks)
    known = stacks.get(thread.digest) if thread else None
    if thread is None or known is None or known.reading is None:
        return None
    placed = at_training_thread(dump, thread)
    if waits_for_device([placed]):
        return True
    traits = known.reading.frame_class.traits
    if traits.hides_any_call:
        wait = classify_wait(kernel_wait_of(thread, dump.kernel))
        return bool(find_hidden_call(placed.native, wait.wait_class))
    if traits.waits_if_asleep:
        return dump.kernel.state in ASLEEP and not thread.active
    return traits.waits_for_ranks


def kernel_wait_of(thread: ThreadDump | None, main: KernelWait) -> KernelWait:
    """Return where the thread that trains waits, with the state of its process."""
    if thread is None or thread.main:
        return main
    own = thread.kernel or KernelWait()
    return replace(main, wchan=own.wchan, syscall=own.syscall, target=own.target, mounts=own.mounts)


def serves_clients(
    frame_class: FrameClass, kernel: KernelWait, settings: Iterable[Setting]
) -> bool:
    """Return whether a thread waits for clients: by its stack, or by the socket it waits for.

    Who listens at MASTER_PORT waits for the other ranks of its own job: they are not its clients.
    """
    port = read_listening_port(kernel.target)
    if port is not None and any(
        each.name == MASTER_PORT and each.value == str(port) for each in settings
    ):
        return False
    return frame_class is FrameClass.SERVER or is_server_end(kernel.target)
