"""A rank is still fetching its batch while the others wait for it in a collective."""

from __future__ import annotations

from watchtower.core.case import Case
from watchtower.core.diagnosis.accusation import accuse_by_stack
from watchtower.core.diagnosis.crowd import Standings
from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.frames import FrameClass
from watchtower.core.diagnosis.standing import Standing
from watchtower.core.diagnosis.wait_places import advise_wait, say_place_of_wait
from watchtower.core.diagnosis.workers import Worker, find_stuck_worker, worker_evidence
from watchtower.core.phrases import clean
from watchtower.wire.verdict import Cause


def find(case: Case, standings: Standings) -> Finding | None:
    """Accuse the ranks whose stacks are in an input pipeline."""
    loading = [item for item in standings.behind if _is_loading(item)]
    if not loading:
        return None
    stacks = {stack.digest: stack for stack in case.stacks}
    workers = {item.rank: find_stuck_worker(stacks, item) for item in loading}
    return accuse_by_stack(
        standings,
        loading,
        cause=Cause.DATALOADER_STALL,
        says=lambda item: _say_worker(workers[item.rank]) or say_place_of_wait(item),
        extra=[
            evidence for item in loading for evidence in worker_evidence(item, workers[item.rank])
        ],
        next_steps=_advise(loading[0], workers[loading[0].rank]),
    )


def _is_loading(standing: Standing) -> bool:
    """Tell whether it waits for data; one that computes all the time only has such a name."""
    if standing.reading is None or standing.frame_class is not FrameClass.DATALOADER:
        return False
    return not (standing.spins and standing.reading.by_name)


def _say_worker(worker: Worker | None) -> str:
    return f"; its worker {worker.says}" if worker else ""


def _advise(first: Standing, worker: Worker | None) -> tuple[str, ...]:
    node = clean(first.evidence.node, 64) or "its node"
    step = "" if first.step is None else f" before step {first.step}"
    again = f"the job can be restarted from its last checkpoint{step}"
    if worker:
        return (f"look at the data loader worker pid {worker.pid} on {node}", again)
    kernel = first.last_dump.kernel if first.last_dump else None
    if kernel and kernel.target.startswith("/"):
        return (f"look at {clean(kernel.target, 120)} and its mount on {node}", again)
    if waits := advise_wait(first):
        return (waits, again)
    return (f"look at the storage that rank {first.rank} reads from on {node}", again)
