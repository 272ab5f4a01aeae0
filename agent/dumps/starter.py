"""Starts dumps of jobs for orders and passed deadlines, within the limits of each job."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from agent.dumpers.dumper import Target
from agent.dumps.dump import DumpRequest
from agent.dumps.triggers import (
    MAX_SAMPLES_PER_MINUTE,
    DumpLedger,
    round_gap_s,
)
from agent.dumps.turns import DumpSlots
from agent.ranks.found_rank import JobKey
from agent.watching.rank import WatchedRank
from agent.watching.watchlist import Watchlist
from watchtower.wire.orders import Deadline, Order

log = logging.getLogger(__name__)

BY_DEADLINE, BY_END = "deadline", "end"
UNKNOWN = "no rank of job {job!r} was found on this node"
EXHAUSTED = "its job was dumped several times in the last minute"


class DumpStarter:
    """Decides whether to start a dump now. For one thread."""

    def __init__(self, watchlist: Watchlist, start: Callable[[DumpRequest], None]) -> None:
        self._watchlist, self._start = watchlist, start
        self._dumps = DumpLedger()
        self._samples = DumpLedger(MAX_SAMPLES_PER_MINUTE)
        self._read: set[tuple[int, int]] = set()
        """Ended processes whose output was read."""

    def slots(self) -> DumpSlots:
        """Return the dump slots at this moment."""
        now = time.monotonic()
        ledgers = (self._dumps, self._samples)
        return DumpSlots(job.owner for ledger in ledgers for job in ledger.running(now))

    def end(self, request: DumpRequest, now: float) -> None:
        """Record that a dump has ended."""
        if not request.ends:
            self._ledger_of(request).end(request.job, now)

    def read_ends(self) -> None:
        """Read once what each rank had written that has just ended. Their files are held open."""
        ended = self._watchlist.ended()
        new: dict[JobKey, list[WatchedRank]] = {}
        for rank in ended:
            if rank.key not in self._read:
                new.setdefault(rank.found.job, []).append(rank)
        self._read = {rank.key for rank in ended}
        for job, ranks in new.items():
            targets = tuple(map(target_of, ranks))
            self._start(DumpRequest(job=job, reason=BY_END, targets=targets, gap_s=0.0, ends=True))

    def dump_overdue(self, job: JobKey, rank: int, deadline: Deadline | None, now: float) -> None:
        """Dump a job, a rank of which is overdue."""
        if self._dumps.satisfies(job, now):
            return
        if self._dumps.is_exhausted(job, now):
            log.warning("rank %d of %s is overdue, but %s", rank, job, EXHAUSTED)
            return
        log.info("rank %d of %s is overdue: dumping", rank, job)
        self._dump(job, BY_DEADLINE, round_gap_s(deadline))

    def carry_out(self, order: Order, now: float) -> None:
        """Carry out an order of the tower, if it is about ranks of this node."""
        job = JobKey.named_by(order)
        if all(each.job != job for each in self._watchlist.found()):
            log.warning("order %s is refused: %s", order.id, UNKNOWN.format(job=order.job))
        elif order.sample:
            self._take_sample(job, order, now)
        elif self._dumps.satisfies(job, now):
            log.info("order %s is satisfied by a recent dump of that job", order.id)
        elif self._dumps.is_exhausted(job, now):
            log.warning("order %s is refused: %s", order.id, EXHAUSTED)
        else:
            log.info("order %s: dumping job %s", order.id, job)
            self._dump(job, order.id, round_gap_s(order))

    def _take_sample(self, job: JobKey, order: Order, now: float) -> None:
        """Sample a job without heartbeats, unless a full dump is running or has just ended."""
        is_dumped = self._dumps.satisfies(job, now) or self._samples.is_running(job, now)
        if not is_dumped and not self._samples.is_exhausted(job, now):
            self._dump(job, order.id, 0.0, sample=True)

    def _dump(
        self,
        job: JobKey,
        reason: str,
        gap_s: float,
        *,
        sample: bool = False,
    ) -> None:
        targets = tuple(
            target_of(rank) for rank in self._watchlist.living() if rank.found.job == job
        )
        if targets:
            request = DumpRequest(
                job=job,
                reason=reason,
                targets=targets,
                gap_s=gap_s,
                sample=sample,
            )
            self._ledger_of(request).begin(job, time.monotonic())
            self._start(request)

    def _ledger_of(self, request: DumpRequest) -> DumpLedger:
        return self._samples if request.sample else self._dumps


def target_of(rank: WatchedRank) -> Target:
    """Return a watched rank as the target of a dump."""
    return Target(
        rank=rank.found.claim.rank,
        pid=rank.found.process.pid,
        start_time=rank.found.process.start_time,
        # Found only when it is read: the page may be found between two rounds.
        read_page=lambda: rank.heartbeat.view_now() if rank.heartbeat is not None else None,
    )
