"""A rank is still fetching its batch while the others wait for it in a collective."""

from __future__ import annotations

from watchtower.core.diagnosis.accusation import accuse_by_stack
from watchtower.core.diagnosis.evidence_wording import advise_wait, say_place_of_wait
from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Position
from watchtower.core.diagnosis.workers import (
    Worker,
    find_stuck_worker,
    takes_from_process,
    worker_evidence,
)
from watchtower.core.phrases import clean
from watchtower.core.reading.frames import FrameClass
from watchtower.wire.verdict import Cause

UNNAMED = frozenset({FrameClass.USER, FrameClass.LOCK})
"""Classes of a stack that does not say what the queue is for."""

FED_CEILING = 0.8
"""Ceiling where no frame says that it fetches a batch: only that a queue of processes is empty and
that a child, which may have filled it, is dead."""


def find(picture: Picture) -> Finding | None:
    """Accuse the ranks whose stacks are in an input pipeline."""
    loading = [item for item in picture.sinks if _is_loading(item)]
    ceiling = 1.0
    if not loading:
        loading = [item for item in picture.sinks if _was_fed(picture, item)]
        ceiling = FED_CEILING
    if not loading:
        return None
    workers = {item.rank: find_stuck_worker(picture.stacks, item) for item in loading}
    return accuse_by_stack(
        picture,
        loading,
        cause=Cause.DATALOADER_STALL,
        says=lambda item: _say_worker(workers[item.rank]) or say_place_of_wait(item),
        extra=[
            evidence for item in loading for evidence in worker_evidence(item, workers[item.rank])
        ],
        ceiling=ceiling,
        next_steps=_advise(loading[0], workers[loading[0].rank], picture.step),
    )


def _is_loading(position: Position) -> bool:
    """Tell whether it waits for data; one that computes all the time only has such a name."""
    if position.reading is None or position.frame_class is not FrameClass.DATALOADER:
        return False
    return not (position.spins and position.reading.by_name)


def _was_fed(picture: Picture, position: Position) -> bool:
    """Tell whether it takes from a queue of processes while a child of it is dead.

    A loop that gets its input from its own processes has a data loader, whatever it is called.
    """
    if not takes_from_process(position) or position.frame_class not in UNNAMED:
        return False
    worker = find_stuck_worker(picture.stacks, position)
    return worker is not None and worker.is_dead


def _say_worker(worker: Worker | None) -> str:
    return f"; its worker {worker.says}" if worker else ""


def _advise(first: Position, worker: Worker | None, made: int | None) -> tuple[str, ...]:
    node = clean(first.evidence.node, 64) or "its node"
    # Of a suspect without heartbeats it is not known that it has made that step.
    step = "" if made is None or first.step is None else f" before step {made}"
    again = f"the job can be restarted from its last checkpoint{step}"
    if worker and worker.is_dead:
        why = f"find why the data loader worker pid {worker.pid} on {node} ended: its output, "
        return (f"{why}the kernel log (out of memory?)", again)
    if worker:
        return (f"look at the data loader worker pid {worker.pid} on {node}", again)
    kernel = first.last_dump.kernel if first.last_dump else None
    if kernel and kernel.target.startswith("/"):
        return (f"look at {clean(kernel.target, 120)} and its mount on {node}", again)
    if waits := advise_wait(first):
        return (waits, again)
    return (f"look at the storage that rank {first.rank} reads from on {node}", again)
