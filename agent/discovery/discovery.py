"""Finds the ranks of this node: checks new processes each tick, and old ones less and less
often.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from agent.discovery.candidates import Candidate
from agent.discovery.check_schedule import CheckSchedule
from agent.discovery.found_rank import FoundRank, JobKey
from agent.discovery.guarded_reads import GuardedReads
from agent.discovery.launchers import RankClaim, label_job, name_job
from agent.discovery.lineages import choose_ranks
from agent.discovery.owners import Owners
from agent.discovery.process_table import Process, ProcessTable
from agent.discovery.rank_mistakes import RankMistakes
from agent.discovery.rank_quota import LeftOut, keep_within_quota
from agent.procfs import Proc
from watchtower.wire import drills
from watchtower.wire.bounds import MAX_NAME, MAX_TEXT
from watchtower.wire.report import JobLabels

CONSIDER_FOR_S = 0.25
"""Seconds per tick for new processes. All processes of a usual node fit into one tick. Ten thousand
that start at once need several ticks, so that reports are not delayed.
"""


class Discovery:
    """Holds the candidates and returns at each tick which processes are ranks."""

    def __init__(
        self,
        proc: Proc,
        table: ProcessTable,
        *,
        match: Mapping[str, str],
        host: str,
        own_pid: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`host` is the name of this machine. `own_pid` and its children are never ranks."""
        self._clock = clock
        self._proc, self._table = proc, table
        self._match, self._host, self._own_pid = dict(match), host, own_pid
        self._unseen: dict[int, Process] = {}
        """Processes not considered yet, oldest first."""
        self._candidates: dict[int, Candidate] = {}
        self._schedule = CheckSchedule()
        self._changed = False
        self.owners = Owners(proc, clock)
        self.mistakes = RankMistakes(self.owners.find_quietly)
        self._reads = GuardedReads(self.owners.find_quietly)
        self._ranks: list[FoundRank] = []
        self._rank_pids: set[int] = set()
        self.left_out = LeftOut()
        self._labels: dict[JobKey, JobLabels] = {}

    def tick(self, now: float) -> list[FoundRank]:
        """Check what is due; return all ranks known now."""
        new, gone = self._table.refresh()
        for process in gone:
            self._unseen.pop(process.pid, None)
            self.owners.forget(process.pid)
            self.mistakes.note(process.pid, "")
            candidate = self._candidates.pop(process.pid, None)
            self._changed |= candidate is not None and candidate.is_claimant()
        self._unseen.update((process.pid, process) for process in new)
        self._consider_unseen(now)
        self._schedule.run(now, check=self._check, is_rank=self._is_rank)
        for candidate in self._candidates.values():
            if candidate.page is not None and candidate.read_identity():
                self._changed = True
        if self._changed:
            self._changed = False
            self._ranks, self.left_out = keep_within_quota(self._resolve(), self._rank_pids)
            self._rank_pids = {rank.pid for rank in self._ranks}
            self._labels = self._label_jobs(self._ranks)
            self._mark()
        return self._ranks

    def _consider_unseen(self, now: float) -> None:
        """Consider new processes, oldest first, until the time of this tick is used up."""
        until = self._clock() + CONSIDER_FOR_S
        while self._unseen and self._clock() < until:
            self._consider(self._unseen.pop(next(iter(self._unseen))), now)

    def _mark(self) -> None:
        """Record which processes were ranks, and close the pages of processes that are not
        watched.
        """
        for rank in self._ranks:
            rank.process.was_rank = True
        if self.left_out.count:
            for pid, candidate in self._candidates.items():
                if candidate.page is not None and pid not in self._rank_pids:
                    candidate.close_page()

    def _consider(self, process: Process, now: float) -> None:
        lineage = [process, *process.lineage()]
        if any(each.pid == self._own_pid for each in lineage):
            return
        candidate = Candidate(process=process, first_seen=now)
        self._candidates[process.pid] = candidate
        self._read_environment(candidate)
        self._changed |= candidate.claim is not None
        above = (self._candidates.get(each.pid) for each in lineage[1:])
        helper = any(each is not None and each.page is not None for each in above)
        self._schedule.add(candidate, now, helper=helper)

    @property
    def has_unseen(self) -> bool:
        """Whether new processes wait for the next tick."""
        return bool(self._unseen)

    def _read_environment(self, candidate: Candidate) -> bool:
        has_changed = candidate.read_environment(self._proc, self._reads, self._match)
        if has_changed:
            self.mistakes.note(candidate.process.pid, candidate.mistake)
        return has_changed

    def _check(self, candidate: Candidate) -> int:
        """Check one candidate. Return how many links were read, or -1 if it has ended."""
        if self._candidates.get(candidate.process.pid) is not candidate:
            return -1
        if candidate.checks:
            self._changed |= self._read_environment(candidate)
        closed = candidate.view is not None and candidate.page is None
        if not candidate.matches or (closed and not self._is_rank(candidate)):
            return 1
        before = candidate.page
        spent = candidate.search_page(self._proc, self._reads)
        self._changed |= candidate.page is not before
        return spent

    def _is_rank(self, candidate: Candidate) -> bool:
        return candidate.process.pid in self._rank_pids

    def _resolve(self) -> list[FoundRank]:
        claims = {
            pid: claim
            for pid, candidate in self._candidates.items()
            if (claim := candidate.merged_claim()) is not None and not candidate.is_left_over()
        }
        for pid in list(claims):
            candidate = self._candidates[pid]
            candidate.owner = candidate.owner or self.owners.find(pid)
            if not candidate.owner:  # the process has ended
                del claims[pid]
        chosen = choose_ranks(
            [self._candidates[pid].as_claimant(claim) for pid, claim in claims.items()]
        )
        return self._describe({pid: claims[pid] for pid in sorted(chosen)})

    def _describe(self, claims: dict[int, RankClaim]) -> list[FoundRank]:
        jobs = {pid: self._job_of(self._candidates[pid]) for pid in claims}
        launchers = {pid: self._launcher_of(self._candidates[pid]) for pid in claims}
        families: dict[tuple[Process, JobKey], set[int]] = defaultdict(set)
        for pid, claim in claims.items():
            families[launchers[pid], jobs[pid]].add(claim.rank)
        found = []
        for pid, claim in claims.items():
            candidate, above = self._candidates[pid], self._candidates.get(launchers[pid].pid)
            if (above is not None and above.launches) or len(
                families[launchers[pid], jobs[pid]]
            ) > 1:
                candidate.launched = True
            rank = FoundRank(
                process=candidate.process,
                job=jobs[pid],
                claim=claim,
                page=candidate.page if candidate.view is not None else None,
                has_page=candidate.view is not None,
                launched=candidate.launched,
            )
            found.append(rank)
        return found

    def trouble(self) -> str:
        """Return which ranks are missing in the reports, and why; empty if none is known."""
        return "; ".join(filter(None, (str(self.left_out), str(self.mistakes))))[:MAX_TEXT]

    def job_labels(self) -> tuple[JobLabels, ...]:
        """Return the labels of the jobs on this node. They come from each job's lowest rank
        here.
        """
        return tuple(each for each in self._labels.values() if each.known())

    def _label_jobs(self, ranks: Iterable[FoundRank]) -> dict[JobKey, JobLabels]:
        labels: dict[JobKey, JobLabels] = {}
        for rank in sorted(ranks, key=lambda each: (each.claim.rank, each.pid)):
            candidate = self._candidates.get(rank.pid)
            if candidate is not None and rank.job not in labels:
                labels[rank.job] = label_job(candidate.words, *rank.job)
        return labels

    def _job_of(self, candidate: Candidate) -> JobKey:
        if candidate.view is not None and candidate.view.job:
            name = candidate.view.job[:MAX_NAME]
        else:
            name = name_job(
                candidate.words,
                host=self._host,
                launcher_started=self._launcher_of(candidate).start_time,
            )
        is_drill = drills.VARIABLE in candidate.words and drills.VARIABLE not in self._match
        return JobKey(drills.mark_drill(name) if is_drill else name, candidate.owner)

    def _launcher_of(self, candidate: Candidate) -> Process:
        """Return the process that started this rank and its siblings. The rank's own wrappers are
        skipped.
        """
        last = candidate.process
        for ancestor in candidate.process.lineage():
            last, above = ancestor, self._candidates.get(ancestor.pid)
            own_wrapper = above is not None and above.claim == candidate.claim is not None
            if not own_wrapper or (above is not None and above.launches):
                break
        return last
