"""Children of a rank, such as DataLoader workers: which of them does not deliver."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.core.diagnosis.frames import read_stack
from watchtower.core.diagnosis.kernel import classify_wait
from watchtower.core.diagnosis.standing import Standing
from watchtower.core.phrases import clean
from watchtower.wire.dumps import ChildDump
from watchtower.wire.report import ProcessState
from watchtower.wire.stacks import Stack
from watchtower.wire.verdict import Evidence

STATE_WORDS = {
    ProcessState.STOPPED: "is stopped (state T)",
    ProcessState.TRACED: "is held by a tracer (state t)",
    ProcessState.UNINTERRUPTIBLE: "is in uninterruptible sleep (state D)",
    ProcessState.ZOMBIE: "is dead and not reaped (state Z)",
}

IDLE_FUNCTIONS = frozenset({"get", "_worker_loop", "poll", "_poll", "select", "wait", "recv"})
"""A worker whose user code does not run waits for work."""

STUCK_WEIGHT = 0.6
SEEN_WEIGHT = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """The child that most likely does not deliver."""

    pid: int
    says: str
    """Completes "its worker ...": "pid 4801 is stopped (state T) at data.py:44 in __getitem__"."""
    weight: float


def find_stuck_worker(stacks: dict[str, Stack], standing: Standing) -> Worker | None:
    """Choose the child that cannot run, else one that sits in user code in every dump."""
    dumps = standing.evidence.dumps[-2:]
    if not dumps or not dumps[-1].children:
        return None
    before = {child.pid: _digest(child) for dump in dumps[:-1] for child in dump.children}
    workers = [_read(child, before, stacks) for child in dumps[-1].children]
    found = [worker for worker in workers if worker is not None]
    return max(found, key=lambda worker: worker.weight, default=None)


def worker_evidence(standing: Standing, worker: Worker | None) -> tuple[Evidence, ...]:
    """Quote the child."""
    if worker is None:
        return ()
    text = f"rank {standing.rank}: worker {worker.says}"
    return (Evidence(source="children", text=text, ranks=str(standing.rank), weight=worker.weight),)


def _read(child: ChildDump, before: dict[int, str], stacks: dict[str, Stack]) -> Worker | None:
    state = STATE_WORDS.get(child.kernel.state)
    place = _user_place(child, stacks)
    at = f" at {place}" if place else ""
    if state:
        return Worker(pid=child.pid, says=f"pid {child.pid} {state}{at}", weight=STUCK_WEIGHT)
    if not place or before.get(child.pid, "") != _digest(child):
        return None
    wait = classify_wait(child.kernel).says
    says = f"pid {child.pid} stays{at}{f', {wait}' if wait else ''}"
    return Worker(pid=child.pid, says=says, weight=SEEN_WEIGHT)


def _digest(child: ChildDump) -> str:
    thread = next((item for item in child.threads if item.main), None)
    return thread.digest if thread else ""


def _user_place(child: ChildDump, stacks: dict[str, Stack]) -> str:
    """Position in the user's code where the child is, empty when it only waits for work."""
    stack = stacks.get(_digest(child))
    if stack is None:
        return ""
    own = tuple(frame for frame in stack.frames[:-1] if not frame.library)
    reading = read_stack(own)
    inside = stack.frames[: stack.frames.index(own[0])] if own else ()
    idle = any(frame.function.rpartition(".")[2] in IDLE_FUNCTIONS for frame in inside)
    return "" if reading is None or idle else clean(reading.where)
