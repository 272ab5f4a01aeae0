"""Finds the ranks of this node: new processes each tick, looked at again less and less often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agent.candidates import Candidate
from agent.launchers import RankClaim, is_launcher, name_job
from agent.lineages import choose_ranks
from agent.look_schedule import LookSchedule
from agent.pages import PageFile
from agent.process_table import Process, ProcessTable
from agent.procfs import Proc
from watchtower.wire.bounds import MAX_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRank:
    """A process that is a rank, and whose."""

    process: Process
    job: str
    claim: RankClaim
    page: PageFile | None


class Discovery:
    """Keeps the candidates and says each tick which processes are ranks now."""

    def __init__(
        self,
        proc: Proc,
        table: ProcessTable,
        *,
        match: Mapping[str, str],
        host: str,
        own_pid: int,
    ) -> None:
        """`host` tells this machine from others; `own_pid` and what it starts are no ranks."""
        self._proc, self._table = proc, table
        self._match, self._host, self._own_pid = dict(match), host, own_pid
        self._candidates: dict[int, Candidate] = {}
        self._schedule = LookSchedule()
        self._changed = False
        self._ranks: list[FoundRank] = []
        self._rank_pids: set[int] = set()

    def tick(self, now: float) -> list[FoundRank]:
        """Look at what is due; return all ranks known now."""
        new, gone = self._table.refresh()
        for process in gone:
            self._changed |= self._candidates.pop(process.pid, None) is not None
        for process in new:
            self._consider(process, now)
        self._schedule.run(now, look=self._look, is_rank=self._is_rank)
        for candidate in self._candidates.values():
            if candidate.page is not None and candidate.read_identity():
                self._changed = True
        if self._changed:
            self._changed = False
            self._ranks = self._resolve()
            self._rank_pids = {rank.process.pid for rank in self._ranks}
        return self._ranks

    def _consider(self, process: Process, now: float) -> None:
        lineage = [process, *process.lineage()]
        if any(each.pid == self._own_pid for each in lineage):
            return
        candidate = Candidate(process=process, first_seen=now)
        self._candidates[process.pid] = candidate
        self._changed |= candidate.look_at_environment(self._proc, self._match)
        above = (self._candidates.get(each.pid) for each in lineage[1:])
        helper = any(each is not None and each.page is not None for each in above)
        self._schedule.add(candidate, now, helper=helper)

    def _look(self, candidate: Candidate) -> int:
        """Look at one candidate and return the links read; -1 when it is gone."""
        if self._candidates.get(candidate.process.pid) is not candidate:
            return -1
        if candidate.looks:
            self._changed |= candidate.look_at_environment(self._proc, self._match)
        if not candidate.matches:
            return 1
        before = candidate.page
        spent = candidate.look_for_page(self._proc)
        self._changed |= candidate.page is not before
        return spent

    def _is_rank(self, candidate: Candidate) -> bool:
        return candidate.process.pid in self._rank_pids

    def _resolve(self) -> list[FoundRank]:
        found: dict[int, FoundRank] = {}
        claimants = []
        for pid, candidate in self._candidates.items():
            claim = candidate.merged_claim()
            if claim is None or candidate.is_left_over():
                continue
            claimants.append(candidate.as_claimant(claim))
            found[pid] = FoundRank(
                process=candidate.process,
                job=self._job_of(candidate),
                claim=claim,
                page=candidate.page if candidate.view is not None else None,
            )
        chosen = choose_ranks(claimants)
        ranks = [rank for pid, rank in sorted(found.items()) if pid in chosen]
        for rank in ranks:
            rank.process.was_rank = True
        return ranks

    def _job_of(self, candidate: Candidate) -> str:
        if candidate.view is not None and candidate.view.job:
            return candidate.view.job[:MAX_NAME]
        return name_job(
            candidate.words,
            host=self._host,
            launcher_started=self._launcher_of(candidate).start_time,
        )

    def _launcher_of(self, candidate: Candidate) -> Process:
        """Return the process that started this rank and its siblings: above its own wrappers."""
        last = candidate.process
        for ancestor in candidate.process.lineage():
            last, above = ancestor, self._candidates.get(ancestor.pid)
            own_wrapper = above is not None and above.claim == candidate.claim is not None
            if not own_wrapper or (above is not None and is_launcher(above.command)):
                break
        return last
