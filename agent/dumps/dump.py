"""One dump: two rounds over all ranks of a job on this node. Each round is sent when it is
complete.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from agent.clocks import Moment, read_moment
from agent.dumpers.dumper import Target
from agent.dumpers.native_places import PythonRuns
from agent.dumps.round import RoundTaker
from agent.ranks.found_rank import JobKey
from watchtower.wire import PROTOCOL_VERSION
from watchtower.wire.dumps import DumpBatch, RankDump

log = logging.getLogger(__name__)

ROUND_DEADLINE_S = 10.0
"""Processes not dumped by then are sent as a timeout: evidence now is better than evidence later.
"""

LEAST_RUNS_S = 1.0
"""Seconds for which Python is looked for at least. On a busy machine, a round may take longer than
the gap."""

NOT_SAMPLED: Mapping[int, bool] = MappingProxyType({})
"""No process was sampled between two rounds."""

Deliver = Callable[[DumpBatch, Moment], None]
"""Receives a batch and the moment of the dump."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpRequest:
    """Which processes to dump, and why."""

    job: JobKey
    reason: str
    targets: tuple[Target, ...]
    gap_s: float
    """Seconds between the beginnings of the two rounds."""
    sample: bool = False
    """One round only, without child processes."""
    ends: bool = False
    """The processes have just ended: one round, sent if they wrote anything known."""


class Dumping:
    """Runs each dump in a thread of its own, so that watching continues meanwhile."""

    def __init__(
        self,
        *,
        node: str,
        taker: RoundTaker,
        deliver: Deliver,
        ended: Callable[[DumpRequest], None],
        runs: PythonRuns | None = None,
    ) -> None:
        """With `runs`, each dump finds between its rounds which targets run Python."""
        self._node, self._taker, self._deliver, self._ended = node, taker, deliver, ended
        self._runs = runs
        self._stopping = threading.Event()

    def start(self, request: DumpRequest) -> None:
        """Start a dump. `ended(request)` is called when it is over."""
        thread = threading.Thread(
            target=self._run, args=(request,), name=f"dump {request.job.name}", daemon=True
        )
        thread.start()

    def stop(self) -> None:
        """Start no further round. The current rounds are not waited for."""
        self._stopping.set()

    def _run(self, request: DumpRequest) -> None:
        try:
            began = time.monotonic()
            self._take(request, 1)
            if request.sample or request.ends:
                return
            ran_python = self._find_runs(request, began + request.gap_s)
            if not self._stopping.wait(max(0.0, began + request.gap_s - time.monotonic())):
                self._take(request, 2, ran_python)
        except Exception:
            log.exception("dump of job %s failed", request.job)
        finally:
            self._ended(request)

    def _find_runs(self, request: DumpRequest, until: float) -> Mapping[int, bool]:
        """Return which targets run Python until then, or for a moment if it has passed, by pid."""
        if self._runs is None:
            return NOT_SAMPLED
        seconds = max(LEAST_RUNS_S, until - time.monotonic())
        pids = [target.pid for target in request.targets]
        return self._runs.find(pids, seconds, request.job.owner)

    def _take(
        self, request: DumpRequest, number: int, ran_python: Mapping[int, bool] = NOT_SAMPLED
    ) -> None:
        taken = read_moment()
        deadline = time.monotonic() + ROUND_DEADLINE_S
        found = self._taker.take(
            request.targets,
            deadline=deadline,
            owner=request.job.owner,
            is_sample=request.sample,
        )
        batch = DumpBatch(
            version=PROTOCOL_VERSION,
            id=uuid.uuid4().hex,
            node=self._node,
            job=request.job.name,
            owner=request.job.owner,
            launch=request.job.launch,
            round=number,
            reason=request.reason,
            held_s=0.0,
            ranks=tuple(with_run(dump, ran_python) for dump in found.ranks),
            stacks=found.stacks,
            groups=found.groups,
            group_logs=found.group_logs,
            sample=request.sample,
        )
        is_empty = request.ends and not any(dump.written for dump in batch.ranks)
        if not self._stopping.is_set() and not is_empty:
            self._deliver(batch, taken)


def with_run(dump: RankDump, ran_python: Mapping[int, bool]) -> RankDump:
    """Return a dump with whether its process ran Python since the round before, if sampled."""
    if dump.native is None:
        return dump
    return replace(dump, native=replace(dump.native, ran_python=ran_python.get(dump.pid)))
