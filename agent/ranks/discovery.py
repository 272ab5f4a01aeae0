"""Finds the ranks of this node: checks new processes each tick, and old ones less and less
often.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from agent.clocks import read_moment
from agent.procfs import Proc
from agent.ranks.candidates import Candidate
from agent.ranks.check_schedule import CheckSchedule
from agent.ranks.found_rank import FoundRank, JobKey
from agent.ranks.groups import Member, find_left_out, number_members, settles_at
from agent.ranks.guarded_reads import GuardedReads
from agent.ranks.launchers import (
    describe_launch,
    find_given_name,
    label_job,
    name_job,
    starts_ranks_only,
)
from agent.ranks.lineages import choose_ranks
from agent.ranks.owners import Owners
from agent.ranks.process_table import Process, ProcessTable
from agent.ranks.sources.source import RankClaim
from agent.ranks.unwatched import (
    HIDDEN_ENVIRONMENT,
    NO_RANK,
    NOT_LIKE_GROUP,
    NOT_READABLE,
    WRONG_RANK,
    UnwatchedProcess,
    count_unwatched,
    keep_within_quota,
)
from watchtower.wire import drills
from watchtower.wire.bounds import MAX_NAME
from watchtower.wire.report import OVER_LIMIT, JobLabels, Unwatched, WaitingLauncher
from watchtower.writing.printable import printable

CONSIDER_FOR_S = 0.25
"""Seconds per tick for new processes. All processes of a usual node fit into one tick. Ten thousand
that start at once need several ticks, so that reports are not delayed.
"""

COUNT_EVERY_S = 5.0
"""Seconds between two counts of the processes that are not watched."""

TICKS_AT_ONCE, TICK_S = 40, 20.0
"""Ticks of `find_all`, for nodes with more processes than one tick reads, and the seconds that each
counts for. They fill the budget of descriptors.
"""

RANKS_TAKE_S = 0.5
"""CPU seconds of a launcher's ended children from which on they were ranks: imports take more."""

YOUNG_S = 10.0
"""A younger process is not counted: its rank may be found in the next check."""


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
        self._booted_at = read_moment().booted_at  # once: a clock that is set changes no name
        self._proc, self._table = proc, table
        self._match, self._host, self._own_pid = dict(match), host, own_pid
        self._unseen: dict[int, Process] = {}
        """Processes not considered yet, oldest first."""
        self._candidates: dict[int, Candidate] = {}
        self._schedule = CheckSchedule()
        self._changed = False
        self.owners = Owners(proc, clock)
        self._signs: dict[int, str] = {}
        """The owner of each process that seems to be a rank or has a wrong one, by pid."""
        self._counted_at = float("-inf")
        self._left_out: list[FoundRank] = []
        self._not_like_group: set[int] = set()
        """Processes without a rank in a group in which others have one."""
        self.unwatched: tuple[Unwatched, ...] = ()
        """The processes that seem to be ranks and are not watched."""
        self._newest_at_begin = -1
        """Start time of the newest process in the first tick."""
        self._reads = GuardedReads(self.owners.find_quietly)
        self._ranks: list[FoundRank] = []
        self._rank_pids: set[int] = set()
        self._labels: dict[JobKey, JobLabels] = {}
        self._settles_at = 0.0
        """When the last group whose members are not numbered yet settles; 0 without one."""

    def tick(self, now: float) -> list[FoundRank]:
        """Check what is due; return all ranks known now."""
        new, gone = self._table.refresh()
        if self._newest_at_begin < 0:
            self._newest_at_begin = max((each.start_time for each in new), default=0)
        for process in gone:
            self._unseen.pop(process.pid, None)
            self._signs.pop(process.pid, None)
            self.owners.forget(process.pid)
            candidate = self._candidates.pop(process.pid, None)
            self._changed |= candidate is not None and (
                candidate.is_claimant() or candidate.member is not None
            )
        self._unseen.update((process.pid, process) for process in new)
        self._consider_unseen(now)
        self._schedule.run(
            now, check=self._check, is_rank=self._is_rank, is_likely=self._may_become_rank
        )
        for candidate in self._candidates.values():
            if candidate.page is not None and candidate.read_identity():
                self._changed = True
        if self._changed or 0 < self._settles_at <= now:
            self._changed = False
            before = self._rank_pids
            self._ranks, self._left_out = keep_within_quota(self._resolve(now), before)
            self._rank_pids = {rank.pid for rank in self._ranks}
            self._labels = self._label_jobs(self._ranks)
            self._mark(before)
            self._hasten_families(before, now)
            self._counted_at = float("-inf")
        if now - self._counted_at >= COUNT_EVERY_S:
            self._counted_at = now
            self.unwatched = count_unwatched(self._find_unwatched())
        return self._ranks

    def find_all(self, now: float = 0.0) -> list[FoundRank]:
        """Return all ranks, by ticks without a pause. For programs that search only once."""
        for _ in range(TICKS_AT_ONCE):
            now += TICK_S
            found = self.tick(now)
            if not (self._unseen or self._settles_at or self._schedule.has_due(now)):
                break
        return found

    def _consider_unseen(self, now: float) -> None:
        """Consider new processes, oldest first, until the time of this tick is used up."""
        until = self._clock() + CONSIDER_FOR_S
        while self._unseen and self._clock() < until:
            self._consider(self._unseen.pop(next(iter(self._unseen))), now)

    def _mark(self, before: set[int]) -> None:
        """Record which processes were ranks, and close the pages of processes that are not
        watched.
        """
        for pid in before - self._rank_pids:
            if pid in self._candidates:  # it lives: it was taken for a rank by mistake
                self._candidates[pid].process.was_rank = False
        for rank in self._ranks:
            rank.process.was_rank = True
        if self._left_out:
            for pid, candidate in self._candidates.items():
                if candidate.page is not None and pid not in self._rank_pids:
                    candidate.close_page()

    def _hasten_families(self, before: set[int], now: float) -> None:
        """Check the relatives of new ranks now: parent and siblings with the same program become
        ranks at the same time.
        """
        new = [self._candidates[pid] for pid in self._rank_pids - before]
        families = {(each.process.parent, each.program) for each in new}
        for parent, program in families:
            for relative in (parent, *parent.children) if parent is not None else ():
                other = self._candidates.get(relative.pid)
                if other is not None and other.program == program and not self._is_rank(other):
                    self._schedule.hasten(other, now)

    def _consider(self, process: Process, now: float) -> None:
        lineage = [process, *process.lineage()]
        if any(each.pid == self._own_pid for each in lineage):
            return
        candidate = Candidate(process=process, first_seen=now, age_s=process.age_s)
        self._candidates[process.pid] = candidate
        self._read_environment(candidate)
        self._changed |= candidate.claim is not None
        above = (self._candidates.get(each.pid) for each in lineage[1:])
        helper = any(each is not None and each.page is not None for each in above)
        self._schedule.add(candidate, now, helper=helper)

    def _read_environment(self, candidate: Candidate) -> bool:
        return candidate.read_environment(self._proc, self._reads, self._match)

    def _read_signs(self, candidate: Candidate) -> int:
        """Read what shows a rank besides its environment of the start and its page.

        Returns how many names of threads were read.
        """
        was_member = candidate.takes_part
        spent = 0 if candidate.view is not None else candidate.find_signs(self._proc)
        self._changed |= candidate.takes_part is not was_member
        is_new = not candidate.checks and candidate.process.start_time > self._newest_at_begin
        if self._may_become_rank(candidate) and not is_new:  # a new one has changed nothing yet
            self._changed |= candidate.read_live(self._proc, self._reads, self._match)
            self._changed |= candidate.read_assigned(self._proc, self._reads, self._match)
            spent += candidate.live.reads
        pid = candidate.process.pid
        if candidate.has_sign() and pid not in self._signs:
            self._signs[pid] = self.owners.find_quietly(pid)
        return spent

    def _may_become_rank(self, candidate: Candidate) -> bool:
        """Return whether a process may set its rank at run time, or hides it behind a title.

        Helpers of a rank do not: only those that are members of a process group.
        """
        if candidate.takes_part:
            return True
        if not (candidate.is_python or candidate.uses_gpu or candidate.hidden):
            return False
        above = self._rank_above(candidate)
        return above is None or not above.is_confirmed

    def _rank_above(self, candidate: Candidate) -> Candidate | None:
        """Return the nearest living rank above a process."""
        for ancestor in candidate.process.lineage():
            if ancestor.alive and ancestor.pid in self._rank_pids:
                return self._candidates.get(ancestor.pid)
        return None

    def _check(self, candidate: Candidate) -> int:
        """Check one candidate. Return how many links were read, or -1 if it has ended."""
        if self._candidates.get(candidate.process.pid) is not candidate:
            return -1
        if candidate.checks:
            self._changed |= self._read_environment(candidate)
        spent = self._read_signs(candidate)
        closed = candidate.view is not None and candidate.page is None
        if not candidate.matches or (closed and not self._is_rank(candidate)):
            return 1 + spent
        before = candidate.page
        spent += candidate.search_page(self._proc, self._reads)
        self._changed |= candidate.page is not before
        return spent

    def _is_rank(self, candidate: Candidate) -> bool:
        return candidate.process.pid in self._rank_pids

    def _resolve(self, now: float) -> list[FoundRank]:
        claims = {
            pid: candidate.claim
            for pid, candidate in self._candidates.items()
            if candidate.claim is not None and not candidate.is_left_over()
        }
        claims |= self._number_members(claims, now)
        for pid in list(claims):
            candidate = self._candidates[pid]
            candidate.owner = candidate.owner or self.owners.find(pid)
            if not candidate.owner:  # the process has ended
                del claims[pid]
        chosen = choose_ranks(
            [self._candidates[pid].as_claimant(claim) for pid, claim in claims.items()]
        )
        return self._describe({pid: claims[pid] for pid in sorted(chosen)})

    def _number_members(self, claims: Mapping[int, RankClaim], now: float) -> dict[int, RankClaim]:
        """Return the ranks of the processes that work together and have none of their own."""
        members = list(self._list_members(claims, now))
        numbers = number_members(members, now)
        self._not_like_group = find_left_out(members)
        waits_until = settles_at(members)
        self._settles_at = waits_until if waits_until > now else 0.0
        found = {}
        for each in members:
            candidate, number = self._candidates[each.pid], numbers.get(each.pid)
            candidate.number = number
            if number is not None and candidate.member is not None:
                found[each.pid] = RankClaim(
                    rank=number,
                    role=candidate.member.role,
                    starts_others=candidate.member.leads,
                )
        return found

    def _list_members(self, claims: Mapping[int, RankClaim], now: float) -> Iterator[Member]:
        for pid, candidate in self._candidates.items():
            place, process = candidate.member, candidate.process
            if place is None or not candidate.matches or candidate.is_left_over():
                continue
            above = [self._candidates.get(each.pid) for each in process.lineage()]
            if any(each is not None and each.member == place for each in above):
                continue  # it was forked, with the title
            starter = self._starter_of(candidate)
            if candidate.joined_at is None:
                candidate.joined_at = now
            yield Member(
                pid=pid,
                group=(starter.pid, starter.start_time, self.owners.find(pid), place.group),
                order=(*place.position, process.start_time, pid),
                joined_at=candidate.joined_at,
                number=candidate.number,
                has_rank=pid in claims and not self._is_of_starter(candidate, starter),
            )

    def _starter_of(self, candidate: Candidate) -> Process:
        """Return the process that has started a group: its first member, if that leads, else the
        parent of a member.
        """
        process, place = candidate.process, candidate.member
        if place is None or place.leads:
            return process
        for ancestor in process.lineage():
            above = self._candidates.get(ancestor.pid)
            if above is not None and above.member is not None and above.member.leads:
                return ancestor
        return process.parent or process

    def _is_of_starter(self, candidate: Candidate, starter: Process) -> bool:
        """Return whether the rank of a process is that of the process that started its group: the
        task of srun in which a cluster of Ray runs.
        """
        above = self._candidates.get(starter.pid)
        own = candidate.claim == candidate.inherited_claim
        return own and above is not None and above.inherited_claim == candidate.inherited_claim

    def _describe(self, claims: dict[int, RankClaim]) -> list[FoundRank]:
        launchers = {pid: self._launcher_of(self._candidates[pid]) for pid in claims}
        launches = {
            pid: describe_launch(
                self._candidates[pid].words,
                _identify(launchers[pid], self._candidates.get(launchers[pid].pid)),
                self._candidates[pid].network,
            )
            for pid in claims
        }
        jobs = {
            pid: self._job_of(self._candidates[pid], launchers[pid], launches[pid].id)
            for pid in claims
        }
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
                launch=launches[pid],
                claim=claim,
                page=candidate.page if candidate.view is not None else None,
                has_page=candidate.view is not None,
                network=candidate.network,
                launched=candidate.launched,
            )
            found.append(rank)
        return found

    def _find_unwatched(self) -> Iterator[UnwatchedProcess]:
        for rank in self._left_out:
            yield UnwatchedProcess(
                pid=rank.pid, owner=rank.job.owner, job=rank.job.name, reason=OVER_LIMIT
            )
        left_out = {rank.pid for rank in self._left_out}
        watched = {rank.pid for rank in self._ranks if rank.claim.is_possible}
        alone = {pid: self.owners.find_quietly(pid) for pid in self._not_like_group}
        for pid, owner in {**alone, **self._signs}.items():
            candidate = self._candidates[pid]
            age_s = candidate.process.age_s
            if pid in watched or pid in left_out or not candidate.matches:
                continue
            reason, detail = self._find_reason(candidate)
            if reason and (age_s >= YOUNG_S or reason == WRONG_RANK):
                job = find_given_name(candidate.words)
                yield UnwatchedProcess(pid=pid, owner=owner, job=job, reason=reason, detail=detail)

    def find_waiting(self) -> Iterator[WaitingLauncher]:
        """Yield the launchers that wait for other nodes: they have no ranks, and had none."""
        busy = {each.pid for rank in self._ranks for each in rank.process.lineage()}
        with_rank = {pid for pid, each in self._candidates.items() if each.claim is not None}
        marks_drills = drills.VARIABLE not in self._match
        for pid, each in self._candidates.items():
            if each.rendezvous is None or not each.matches or pid in busy:
                continue
            stat, owner = self._proc.stat(pid), each.owner or self.owners.find(pid)
            if stat is None or stat.state == "Z" or stat.ended_children_s >= RANKS_TAKE_S:
                continue  # it waits until the ranks of other nodes end, too
            if owner and not each.rendezvous.is_answered(each.process, with_rank):
                name = self._name(each.rendezvous.variables, each.runs, each.process)
                yield each.rendezvous.describe(
                    each.process, owner=owner, name=name, marks_drills=marks_drills
                )

    def _find_reason(self, candidate: Candidate) -> tuple[str, str]:
        """Return why a process that seems to be a rank is not one, with details; else "", ""."""
        if candidate.process.pid in self._not_like_group and candidate.member is not None:
            return NOT_LIKE_GROUP, candidate.member.role
        above = self._rank_above(candidate)
        if candidate.mistake and above is None:  # helpers inherit the environment of their rank
            return WRONG_RANK, f"pid {candidate.process.pid}: {candidate.mistake}"
        if not candidate.takes_part and not self._is_launched_on_gpu(candidate):
            return "", ""
        if above is not None and above.is_confirmed:
            return "", ""  # a helper of a rank with a process group of its own
        if not candidate.is_readable:
            return NOT_READABLE, ""
        return (HIDDEN_ENVIRONMENT, candidate.hidden) if candidate.hidden else (NO_RANK, "")

    def _is_launched_on_gpu(self, candidate: Candidate) -> bool:
        """Return whether a launcher has started a process that uses a GPU, or whose environment is
        hidden, and that names no rank.
        """
        parent = candidate.process.parent
        above = self._candidates.get(parent.pid) if parent is not None else None
        is_launched = above is not None and above.launches and starts_ranks_only(above.command)
        return is_launched and candidate.claim is None and candidate.has_sign()

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

    def _job_of(self, candidate: Candidate, launcher: Process, launch: str) -> JobKey:
        if candidate.number is not None and candidate.member is not None:
            name = self._name_group(candidate, candidate.member.group)
        elif candidate.view is not None and candidate.view.job:
            name = candidate.view.job[:MAX_NAME]
        else:
            program = candidate.name_program(self._candidates.get(launcher.pid))
            name = self._name(candidate.words, program, launcher)
        is_drill = drills.VARIABLE in candidate.words and drills.VARIABLE not in self._match
        return JobKey(drills.mark_drill(name) if is_drill else name, candidate.owner, launch)

    def _name(self, variables: Mapping[str, str], program: str, launcher: Process) -> str:
        started = launcher.name_start(self._booted_at)
        return name_job(variables, host=self._host, program=program, started=started)

    def _name_group(self, candidate: Candidate, group: str) -> str:
        """Return the name of a group's job: it has a part for the group, as other groups may have
        the same environment.
        """
        server = next(
            (
                above.port
                for each in (candidate.process, *candidate.process.lineage())
                if (above := self._candidates.get(each.pid)) is not None and above.port
            ),
            "",
        )
        first = find_given_name(candidate.words) or self._host
        return printable("-".join(filter(None, (f"{first}.{group}", server))), MAX_NAME)

    def _launcher_of(self, candidate: Candidate) -> Process:
        """Return the process that started this rank and its siblings. The rank's own wrappers are
        skipped.
        """
        if candidate.number is not None:
            return self._starter_of(candidate)
        last = candidate.process
        for ancestor in candidate.process.lineage():
            last, above = ancestor, self._candidates.get(ancestor.pid)
            own_wrapper = (
                above is not None and above.inherited_claim == candidate.inherited_claim is not None
            )
            if not own_wrapper or (above is not None and above.launches):
                break
        return last


def make_discovery(proc: Proc, match: Iterable[tuple[str, str]]) -> Discovery:
    """Return a discovery on this machine. `match`: what the environment of a rank has."""
    return Discovery(
        proc,
        ProcessTable(proc),
        match=dict(match),
        host=os.uname().nodename,
        own_pid=os.getpid(),
    )


def _identify(launcher: Process, candidate: Candidate | None) -> str:
    """Return the pid and start time of a launcher; empty for init, which adopts orphans."""
    is_init = launcher.pid <= 1 and not (candidate is not None and candidate.launches)
    return "" if is_init else f"{launcher.pid} {launcher.start_time}"
