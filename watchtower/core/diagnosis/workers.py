"""Children of a rank, DataLoader workers or programs: which of them it may wait for, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Position
from watchtower.core.phrases import clean
from watchtower.core.reading.frames import (
    FrameClass,
    classify_frame,
    last_component,
    read_stack,
)
from watchtower.core.reading.kernel import classify_wait
from watchtower.core.reading.patterns import part
from watchtower.core.reading.threads import KnownStack
from watchtower.core.reading.wait_places import called_by_user
from watchtower.wire.dumps import ChildDump
from watchtower.wire.report import ProcessState
from watchtower.wire.stacks import Frame
from watchtower.wire.verdict import Evidence

STATE_WORDS = {
    ProcessState.STOPPED: "is stopped (state T)",
    ProcessState.TRACED: "is held by a tracer (state t)",
    ProcessState.UNINTERRUPTIBLE: "is in uninterruptible sleep (state D)",
    ProcessState.ZOMBIE: "is dead and not reaped (state Z)",
}

IDLE_FUNCTIONS = frozenset({"get", "_worker_loop", "poll", "_poll", "select", "wait", "recv"})
"""A worker whose user code does not run waits for work."""

FROM_PROCESSES = part(
    r"^multiprocessing/(queues|connection|managers|pool)\.py$|^concurrent/futures/process\.py$"
)
"""Files of calls that wait for what another process sends."""

MAX_NAMED_CHILDREN = 3
"""Programs named of those that a rank may wait for."""

STUCK_WEIGHT = 0.6
SEEN_WEIGHT = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """The child that most likely does not deliver."""

    pid: int
    says: str
    """Completes "its worker ...": "pid 4801 is stopped (state T) at data.py:44 in __getitem__"."""
    weight: float
    is_dead: bool = False


def find_stuck_worker(stacks: Mapping[str, KnownStack], position: Position) -> Worker | None:
    """Choose the child that cannot run, else one that sits in user code in every dump."""
    dumps = position.evidence.dumps[-2:]
    if not dumps or not dumps[-1].children:
        return None
    before = {child.pid: _digest(child) for dump in dumps[:-1] for child in dump.children}
    workers = [_read(child, before, stacks) for child in dumps[-1].children]
    found = [worker for worker in workers if worker is not None]
    return max(found, key=lambda worker: worker.weight, default=None)


def worker_evidence(position: Position, worker: Worker | None) -> tuple[Evidence, ...]:
    """Quote the child."""
    if worker is None:
        return ()
    text = f"rank {position.rank}: worker {worker.says}"
    return (Evidence(source="children", text=text, ranks=str(position.rank), weight=worker.weight),)


def child_evidence(picture: Picture, suspects: Iterable[Position]) -> Iterator[Evidence]:
    """Quote children that may be waited for; they weigh nothing: many ranks have idle children."""
    for item in suspects:
        if says := _say_child(picture, item):
            rank = str(item.rank)
            yield Evidence(source="children", text=f"rank {rank}: {says}", ranks=rank, weight=0.0)


def say_child(picture: Picture, position: Position) -> str:
    """Say "; it waits for its child 18320 (cat), blocked in read() on pipe:[7]", or nothing."""
    says = _say_child(picture, position)
    return f"; {says}" if says else ""


def takes_from_process(position: Position) -> bool:
    """Tell whether it sleeps in a call that gets an item from a queue of another process."""
    return position.asleep and any(
        frame.file == "multiprocessing/queues.py" and last_component(frame.function) == "get"
        for frame in _called(position)
    )


def _called(position: Position) -> tuple[Frame, ...]:
    return tuple(called_by_user(position.stack.frames)) if position.stack else ()


def _say_child(picture: Picture, position: Position) -> str:
    dump = position.last_dump
    if dump is None or not dump.children or not position.asleep:
        return ""
    called = _called(position)
    if any(FROM_PROCESSES.matches(frame.file) for frame in called):
        worker = find_stuck_worker(picture.stacks, position)
        return f"its worker {worker.says}" if worker else ""
    by_frames = any(classify_frame(frame) is FrameClass.CHILD for frame in called)
    if by_frames or position.wait.wait_class == "child":
        return _say_programs(dump.children)
    return ""


def _say_programs(children: tuple[ChildDump, ...]) -> str:
    named = [_describe_program(child) for child in children[:MAX_NAMED_CHILDREN]]
    if len(children) == 1:
        return f"it waits for its child {named[0]}"
    more = len(children) - len(named)
    rest = f"; {more} more" if more else ""
    return f"it waits for one of its children: {'; '.join(named)}{rest}"


def _describe_program(child: ChildDump) -> str:
    program = clean(child.command, 64)
    name = f"{child.pid} ({program})" if program else str(child.pid)
    wait = classify_wait(child.kernel).says
    says = STATE_WORDS.get(child.kernel.state) or (f"is {wait}" if wait else "")
    return f"{name}, which {says}" if says else name


def _read(
    child: ChildDump, before: dict[int, str], stacks: Mapping[str, KnownStack]
) -> Worker | None:
    state = STATE_WORDS.get(child.kernel.state)
    place = _user_place(child, stacks)
    at = f" at {place}" if place else ""
    if state:
        return Worker(
            pid=child.pid,
            says=f"pid {child.pid} {state}{at}",
            weight=STUCK_WEIGHT,
            is_dead=child.kernel.state is ProcessState.ZOMBIE,
        )
    if not place or before.get(child.pid, "") != _digest(child):
        return None
    wait = classify_wait(child.kernel).says
    says = f"pid {child.pid} stays{at}{f', {wait}' if wait else ''}"
    return Worker(pid=child.pid, says=says, weight=SEEN_WEIGHT)


def _digest(child: ChildDump) -> str:
    thread = next((item for item in child.threads if item.main), None)
    return thread.digest if thread else ""


def _user_place(child: ChildDump, stacks: Mapping[str, KnownStack]) -> str:
    """Position in the user's code where the child is, empty when it only waits for work."""
    known = stacks.get(_digest(child))
    if known is None:
        return ""
    stack = known.stack
    own = tuple(frame for frame in stack.frames[:-1] if not frame.library)
    reading = read_stack(own)
    inside = stack.frames[: stack.frames.index(own[0])] if own else ()
    idle = any(last_component(frame.function) in IDLE_FUNCTIONS for frame in inside)
    return "" if reading is None or idle else clean(reading.where)
