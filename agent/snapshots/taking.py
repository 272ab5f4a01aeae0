"""Takes a snapshot: finds the ranks of this node, and dumps them twice between two reports."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from agent import __version__
from agent.delivery.clocks import Moment, age_s, read_moment
from agent.discovery.discovery import Discovery
from agent.discovery.found_rank import JobKey
from agent.discovery.process_table import ProcessTable
from agent.dump_starter import target_of
from agent.dumpers.native_places import MAX_NATIVE_OUTPUT_BYTES, NativePlaces
from agent.dumpers.python_runs import MAX_RUNS_OUTPUT_BYTES, RUNS_GRACE_S, PythonRuns
from agent.dumpers.python_stacks import MAX_PY_SPY_OUTPUT_BYTES, PythonStacks, find_py_spy
from agent.dumpers.source_loops import MAX_SOURCE_OUTPUT_BYTES, SourceLoops
from agent.dumpers.tool_process import ChildRunner
from agent.dumpers.watched_descriptors import MAX_WATCHED_OUTPUT_BYTES, WatchedDescriptors
from agent.dumping.dump import LEAST_RUNS_S, ROUND_DEADLINE_S, Dumping, DumpRequest
from agent.dumping.dump_round import ROUND_GRACE_S, RoundTaker
from agent.gaps import HOST_PID_NAMESPACE, read_pid_namespace
from agent.procfs import Proc
from agent.snapshots.options import SnapshotOptions
from agent.snapshots.rights import find_limits
from agent.watching.ranks import WatchedRank
from agent.watching.watchlist import Watchlist
from watchtower.service.fair_order import by_turns
from watchtower.wire import PROTOCOL_VERSION
from watchtower.wire.dumps import DumpBatch
from watchtower.wire.report import AgentGaps, Report
from watchtower.wire.snapshot import SNAPSHOT_FORMAT, JobGap, Snapshot

JOBS_AT_ONCE = 4
"""Jobs that are dumped at the same time. Most nodes run one."""

REASON = "snapshot"

ROUNDS = 2

NO_PLACE = (
    "its ranks were not dumped, because the dumps of {places} other jobs did not end within "
    "{waited_s:.0f} s: take a snapshot of this job alone (--match)"
)
NOT_DUMPED = (
    "its ranks were not dumped: no dump ended within {waited_s:.0f} s. Take another snapshot"
)
DUMPED_ONCE = (
    "its ranks were dumped once only, because the second dump did not end within {waited_s:.0f} s. "
    "Take another snapshot"
)


class SnapshotTaker:
    """Takes one snapshot. `take` may be called once."""

    def __init__(self, options: SnapshotOptions) -> None:
        self._options = options
        self._proc = Proc(options.root)
        self._discovery = Discovery(
            self._proc,
            ProcessTable(self._proc),
            match=dict(options.match),
            host=os.uname().nodename,
            own_pid=os.getpid(),
        )
        self._watchlist = Watchlist(self._proc, options.gap_s)
        py_spy = options.py_spy or find_py_spy()
        self._gaps = find_limits(self._proc, py_spy)
        self._stacks = PythonStacks(ChildRunner(MAX_PY_SPY_OUTPUT_BYTES), py_spy)
        self._agent_id = uuid.uuid4().hex
        self._batches: list[tuple[DumpBatch, Moment]] = []
        self._places = threading.Semaphore(JOBS_AT_ONCE)

    @property
    def unwatched_texts(self) -> tuple[str, ...]:
        """Sentences about processes that seem to be ranks and are not dumped."""
        return tuple(each.text for each in self._discovery.unwatched)

    @property
    def gaps(self) -> AgentGaps:
        """Evidence that cannot be read on this node."""
        return self._gaps

    def find_ranks(self) -> int:
        """Find the ranks of this node and return their number."""
        self._watchlist.update(self._discovery.find_all(), time.monotonic())
        return len(self._watchlist.living())

    def take(self) -> Snapshot:
        """Dump the ranks twice between two reports, and return everything as one message."""
        self._watchlist.vitals(time.monotonic())  # movement is measured from here
        began = time.monotonic()
        first = self._report()
        gaps = self._dump()
        self._watchlist.notice_ends(time.monotonic())
        last, now = self._report(), read_moment()
        return Snapshot(
            format=SNAPSHOT_FORMAT,
            watchtower=__version__,
            node=self._options.node,
            taken_at=now.wall_s,
            gap_s=time.monotonic() - began,
            reports=(first, last),
            dumps=tuple(
                replace(batch, held_s=age_s(taken, now)) for batch, taken in list(self._batches)
            ),
            gaps=gaps,
        )

    def _report(self) -> Report:
        return Report(
            version=PROTOCOL_VERSION,
            node=self._options.node,
            agent_id=self._agent_id,
            interval_s=max(self._options.gap_s, 1.0),
            ranks=self._watchlist.vitals(time.monotonic()),
            jobs=self._discovery.job_labels(),
            launches=self._watchlist.launches(),
            contained=read_pid_namespace(self._proc) != HOST_PID_NAMESPACE,
            limits=replace(self._gaps, owners=self._discovery.owners.trouble()),
            unwatched=self._discovery.unwatched,
        )

    def _dump(self) -> tuple[JobGap, ...]:
        """Dump every job, as many at once as there are places, and return which lack dumps.

        Owners take turns.
        """
        jobs: dict[JobKey, list[WatchedRank]] = {}
        for rank in self._watchlist.living():
            jobs.setdefault(rank.found.job, []).append(rank)
        loops = SourceLoops(self._proc, ChildRunner(MAX_SOURCE_OUTPUT_BYTES))
        dumping = Dumping(
            node=self._options.node,
            taker=RoundTaker(
                self._proc,
                self._stacks,
                lambda _: None,
                loops if self._options.read_source else None,
                NativePlaces(self._proc, ChildRunner(MAX_NATIVE_OUTPUT_BYTES)),
                watched=WatchedDescriptors(self._proc, ChildRunner(MAX_WATCHED_OUTPUT_BYTES)),
                runs=PythonRuns(self._proc, ChildRunner(MAX_RUNS_OUTPUT_BYTES)),
            ),
            deliver=lambda batch, taken: self._batches.append((batch, taken)),
            ended=lambda _: self._places.release(),
        )
        gap_s = self._options.gap_s
        longest_s = 2 * (ROUND_DEADLINE_S + ROUND_GRACE_S) + gap_s + LEAST_RUNS_S + RUNS_GRACE_S
        unplaced = set()
        for job, ranks in by_turns((job.owner, (job, ranks)) for job, ranks in jobs.items()):
            if self._places.acquire(timeout=longest_s):
                targets = tuple(map(target_of, ranks))
                request = DumpRequest(
                    job=job, reason=REASON, targets=targets, gap_s=gap_s, python_runs=True
                )
                dumping.start(request)
            else:
                unplaced.add(job)
        for _ in range(JOBS_AT_ONCE):
            self._places.acquire(timeout=longest_s)
        dumping.stop()
        return find_undumped(jobs, unplaced, [batch for batch, _ in self._batches], longest_s)


def find_undumped(
    jobs: Iterable[JobKey],
    unplaced: Collection[JobKey],
    dumps: Sequence[DumpBatch],
    waited_s: float,
) -> tuple[JobGap, ...]:
    """Return a gap for each of these jobs without two dumps. `unplaced`: those not begun."""
    rounds = Counter((batch.job, batch.owner) for batch in dumps)
    found = []
    for job in jobs:
        number = rounds[job.name, job.owner]
        if number >= ROUNDS:
            continue
        text = NO_PLACE if job in unplaced else DUMPED_ONCE if number else NOT_DUMPED
        sentence = text.format(places=JOBS_AT_ONCE, waited_s=waited_s)
        found.append(JobGap(job=job.name, owner=job.owner, text=sentence))
    return tuple(found)
