"""The fleet: which processes are which ranks of which job, rebuilt from reports at any time.

The rules of this file: a process is known by (node, pid, start time), never by its rank; a new
generation of a job begins when a rank comes back as another process; and a process of another owner
is of another job. Reports are the only input; everything is soft state, updated in place.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from watchtower.core.fleet.account import Account, Holder
from watchtower.core.fleet.claims import Claim, precedence
from watchtower.core.fleet.generation import (
    Generation,
    NodeRecord,
    PastGeneration,
    ProcessKey,
    RankRecord,
)
from watchtower.core.fleet.job import Job
from watchtower.core.fleet.labels import Labels
from watchtower.core.fleet.quotas import Quota
from watchtower.core.policy import Policy
from watchtower.core.reading.movement import transfers
from watchtower.wire.bounds import MAX_WORLD_SIZE
from watchtower.wire.dumps import RankDump, SentBatch
from watchtower.wire.report import Ending, EndingKind, ProcessState, RankVitals, Report

MAX_JOBS = 4096
"""Jobs kept in memory, ended ones included until they are forgotten; further ones are left out, so
that a node which invents jobs does not hide the ranks of real ones."""

MAX_JOBS_PER_NODE = 512
"""Jobs in memory that one node was the first to report; ended ones count until forgotten."""

MAX_RANKS = MAX_WORLD_SIZE
"""Ranks of all jobs in memory, some 2 KB each and checked twice a second: twice the largest job
designed for. Further ones are left out."""

MAX_STORED_BYTES = 256 * 1024 * 1024
"""What jobs and nodes have in memory beyond a record of each rank: two rounds of dumps of 131,072
ranks at 1 KB each. Beyond it who has most loses some (see `account`)."""

AGENTS = ""
"""Owner of what agents say of themselves."""

CROWDED = 0.5
"""Share of the jobs or ranks from which on ended and lost jobs are not kept for people to see."""

MAX_NODES = 65_536
"""Nodes kept in memory; reports of further ones are refused."""

MAX_PAST = 20_000
"""Jobs that are over and of which the number of generations is remembered: many have a name of
their own. The oldest make room."""

NODE_MEMORY_S = 3600.0
"""A node without ranks that has been silent for this long is no longer part of the fleet."""


class FleetFullError(Exception):
    """A bound of the fleet is reached; the message says which and what to do."""


class Fleet:
    """All nodes and jobs. `take_report` and `take_dumps` are the only ways in."""

    def __init__(
        self, policy: Policy, *, max_jobs: int = MAX_JOBS, max_nodes: int = MAX_NODES
    ) -> None:
        self._policy = policy
        self._max_jobs = max_jobs
        self._max_nodes = max_nodes
        self.nodes: dict[str, NodeRecord] = {}
        self.jobs: dict[str, Job] = {}
        self.past: dict[str, PastGeneration] = {}
        """The last generation of jobs that are not live (any more)."""
        self.labels = Labels(self._holder_of)
        self.refused_jobs = 0
        """Ranks that were not taken because there are too many of them, or of their jobs."""
        self._ranks, self._jobs = Quota(), Quota()
        self._founded: defaultdict[str, Quota] = defaultdict(Quota)
        """Jobs in memory by the node that reported them first."""
        self.account = Account()
        self.deferred_claims = 0
        """Processes left out of a report because their job began too many attempts."""

    def take_report(self, report: Report, now: float) -> dict[str, Exception]:
        """Bring the fleet up to date with one node. Raises FleetFullError at a bound.

        Returns what failed, by job: one job's trouble does not cost the node its report.
        """
        if report.node not in self.nodes and len(self.nodes) >= self._max_nodes:
            raise FleetFullError(
                f"{self._max_nodes} nodes are known already, {report.node} is refused"
            )
        previous = self.nodes.get(report.node)
        node = NodeRecord.of(report, now, self._policy.silence_s)
        if previous is not None:
            node.compare_agents(previous, now)
        self.nodes[report.node] = node
        reported = {ProcessKey(report.node, v.pid, v.start_time) for v in report.ranks}
        labels, failed = set[str](), dict[str, Exception]()
        for vitals in sorted(report.ranks, key=precedence):
            key = ProcessKey(report.node, vitals.pid, vitals.start_time)
            label = self._label_of(vitals, key)
            labels.add(label)
            try:
                claim = Claim(key, vitals, reported, self.nodes, self._policy, now)
                self._take_vitals(label, claim)
            except Exception as error:
                failed[label] = error
            if self._is_on(report.node, label, vitals.rank):
                node.ranks.add((label, vitals.rank))
        for name in labels:
            self._drop_rivals(name, report.node, reported)
        gone = previous.ranks - node.ranks if previous else set()
        node.ranks |= {item for item in gone if self._is_awaited(*item, report.node, now)}
        # All agents' sentences are one owner's: no number of node names makes them many.
        self.account.note(("node", report.node), node, AGENTS, report.node)
        self._count_bytes(*labels)
        return failed

    def take_dumps(self, sent: SentBatch, now: float) -> list[RankDump]:
        """Attach dumps to the ranks they were taken of; returns those that tell something new."""
        job = self.jobs.get(self.labels.find(sent.batch.job, sent.batch.owner))
        if job is None:
            return []
        return self.recall_dumps(job, sent, now - sent.batch.held_s)

    def recall_dumps(self, job: Job, sent: SentBatch, taken_at: float) -> list[RankDump]:
        """Attach dumps of a job that were taken at some time; returns as `take_dumps` does."""
        taken = job.generation.take_dumps(sent, taken_at)
        self._count_bytes(job.name)
        return taken

    def count_kept(self, what: str, label: str, kept: Holder) -> None:
        """Bring the account up to date with what the tower keeps of a job besides.

        Of a job that is over it counts until the tower removes it from the account.
        """
        job, past = self.jobs.get(label), self.past.get(label)
        owner = job.sharer if job else past and past.owner
        self.account.note((what, label), kept, owner or label, job.founder if job else "")
        self.account.keep_to(MAX_STORED_BYTES)

    def _count_bytes(self, *labels: str) -> None:
        """Bring the account of some jobs up to date, and keep to the bound."""
        for job in filter(None, map(self.jobs.get, labels)):
            self.account.note(("job", job.name), job, job.sharer, job.founder)
        self.account.keep_to(MAX_STORED_BYTES)

    @property
    def rank_count(self) -> int:
        """Ranks of all jobs."""
        return self._ranks.total

    def is_crowded_for(self, job: Job) -> bool:
        """Whether room for new jobs gets short, for all or for the owner of this one."""
        if self.is_crowded or self._jobs.is_crowded(job.owner, self._max_jobs):
            return True
        return self._founded[job.founder].is_crowded(job.owner, MAX_JOBS_PER_NODE)

    @property
    def is_crowded(self) -> bool:
        """Whether room for new jobs gets short."""
        return len(self.jobs) > CROWDED * self._max_jobs or self.rank_count > CROWDED * MAX_RANKS

    def drop_old(self, now: float) -> None:
        """Forget rivals that are not reported any more, and nodes that have been silent for long
        and hold no rank of a live job."""
        for job in self.jobs.values():
            if job.generation.rivals:
                job.generation.expire_rivals(now)
                self._count_bytes(job.name)
        old = {name for name, node in self.nodes.items() if now - node.seen_at > NODE_MEMORY_S}
        if old:
            jobs = self.jobs.values()
            old -= {r.key.node for job in jobs for r in job.generation.ranks.values()}
        for name in old:
            del self.nodes[name]
            self.account.remove(("node", name))

    def forget(self, name: str) -> None:
        """Drop a job, remembering only how many generations it had, and whose it was."""
        job = self.jobs.pop(name)
        self.labels.drop(name)
        self.account.remove(("job", name))
        self.past[name] = PastGeneration(number=job.generation.number, owner=job.owner)
        while len(self.past) > MAX_PAST:
            self.past.pop(next(iter(self.past)))
        self._count(job, job.owner, -1)
        if not self._founded[job.founder].total:
            del self._founded[job.founder]

    def _holder_of(self, label: str) -> str | None:
        known = self.jobs.get(label) or self.past.get(label)
        return known.owner if known is not None else None

    def _label_of(self, vitals: RankVitals, key: ProcessKey) -> str:
        """Return the label of the job that a process is of.

        A process that was reported before stays in its job: an agent that was restarted may have
        learned, or may no longer be able to see, whose it is.
        """
        live = self.labels.find_live(vitals.job, vitals.owner)
        if live is not None:
            return live
        job, past = self.jobs.get(vitals.job), self.past.get(vitals.job)
        record = job.generation.ranks.get(vitals.rank) if job else None
        if (record is not None and record.key == key) or (past and key in past.processes):
            return vitals.job
        return self.labels.find(vitals.job, vitals.owner)

    def _note_name(self, job: Job, name: str, owner: str) -> None:
        """Note what agents call a job, and whose it is."""
        if self.labels.find_live(name, owner) is not None:
            return
        self.labels.bind(name, owner, job.name)
        if owner and owner != job.owner:
            self._count(job, job.owner, -1)
            job.owner = owner
            self._count(job, job.owner, 1)

    def _count(self, job: Job, owner: str, sign: int) -> None:
        """Add a job to the shares of its owner, or take it out."""
        self._jobs.add(owner, sign)
        self._founded[job.founder].add(owner, sign)
        self._ranks.add(owner, sign * len(job.generation.ranks))

    def _take_vitals(self, label: str, claim: Claim) -> None:
        vitals, key = claim.vitals, claim.key
        job = self.jobs.get(label) or self._new_job(label, claim)
        if job is None:
            return
        self._note_name(job, vitals.job, vitals.owner)
        gen = job.generation
        record = gen.ranks.get(vitals.rank)
        if record is not None and record.key == key:
            if not claim.is_of_another_agent(record):
                self._update(gen, record, vitals, claim.now)
        elif key in job.retired:
            if record is None and claim.goes_on(job.retired[key]):
                del job.retired[key]
                self._join(job, claim)
        elif record is None and claim.is_history(gen):
            job.retire([key], claim.now)
        elif record is None and not claim.comes_after(gen):
            self._join(job, claim)
        else:
            self._weigh_claim(job, record, claim)

    def _weigh_claim(self, job: Job, record: RankRecord | None, claim: Claim) -> None:
        """Take in a process whose rank, or whose whole job, was another's until now."""
        gen = job.generation
        if record is not None and claim.is_renamed(record):
            gen.rivals.pop(claim.key, None)
            record.key = claim.key
            self._update(gen, record, claim.vitals, claim.now)
        elif claim.vitals.ended is not None:
            job.retire([claim.key], claim.now)
        elif record is not None and claim.takes_over(record):
            self._join(job, claim)
            gen.note_rival(record.key, record.vitals, record.seen_at)
        elif claim.is_rival(gen, record):
            gen.note_rival(claim.key, claim.vitals, claim.now)
        elif not job.attempts.may_begin(claim.now):
            self.deferred_claims += 1
        else:
            job.retire((r.key for r in gen.ranks.values()), claim.now)
            self._ranks.add(job.owner, -len(gen.ranks))
            job.generation = Generation(job.name, gen.number + 1, claim.now)
            self._join(job, claim)

    def _new_job(self, label: str, claim: Claim) -> Job | None:
        vitals = claim.vitals
        past = self.past.get(label, PastGeneration(number=0))
        is_known = claim.key in past.processes
        is_old = vitals.ended is not None and vitals.ended.age_s > self._policy.silence_s
        if is_old and not is_known:
            return None  # it ended before this tower started: history, not a job to watch
        node, owner = claim.key.node, vitals.owner or past.owner
        has_room = (
            self._jobs.has_room(owner, self._max_jobs)
            and self._ranks.has_room(owner, MAX_RANKS)
            and self._founded[node].has_room(owner, MAX_JOBS_PER_NODE)
        )
        if not has_room:
            self.refused_jobs += 1
            return None
        self.past.pop(label, None)
        began_at = claim.now - vitals.found_age_s
        gen = Generation(label, past.number + (not is_known), began_at)
        if is_known:
            gen.pace("").recall(past.typical_step_s)
            gen.known, gen.awaited, gen.recalled_at = past.processes, set(past.processes), claim.now
        job = self.jobs[label] = Job(label, gen, node, owner)
        self._count(job, owner, 1)
        if not is_known:
            job.retire(past.processes, claim.now)
        return job

    def _join(self, job: Job, claim: Claim) -> None:
        gen = job.generation
        gen.rivals.pop(claim.key, None)
        is_new = claim.vitals.rank not in gen.ranks
        if is_new and not self._ranks.has_room(job.owner, MAX_RANKS):
            self.refused_jobs += 1
            return
        self._ranks.add(job.owner, is_new)
        record = RankRecord(
            key=claim.key,
            vitals=claim.vitals,
            seen_at=claim.now,
            first_seen_at=claim.now - claim.vitals.found_age_s,
            moved_at=claim.now,
        )
        gen.put(record)
        gen.awaited.discard(claim.key)
        gen.recall_wanted = gen.arrivals.claim(claim.vitals.rank) or gen.recall_wanted
        gen.began_at = min(gen.began_at, record.first_seen_at)
        self._update(gen, record, claim.vitals, claim.now)

    def _update(self, gen: Generation, record: RankRecord, vitals: RankVitals, now: float) -> None:
        if record.vitals.state is ProcessState.STOPPED is not vitals.state and all(
            other.vitals.state is ProcessState.STOPPED for other in gen.live()
        ):
            gen.resumed_at = now  # the first rank to go on after the whole job was suspended
        interval_s = self._believed_interval_s(record, vitals, now)
        gen.note_vitals(record, vitals)
        record.seen_at = now
        reporter = self.nodes[record.key.node]
        record.reporter, record.held_until = reporter.agent_id, now + reporter.hold_s
        record.missing_since = None
        record.ended_at = None if vitals.ended is None else record.ended_at
        movement = vitals.movement
        stores = movement.write_bytes_per_s + movement.read_bytes_per_s > 0
        if stores or movement.cpu_cores >= self._policy.moving_cpu_cores or transfers(movement):
            record.moved_at = now
        if vitals.ended is not None:
            # A report on its way for long makes a death seem later than it was, never earlier.
            ended_at = now - vitals.ended.age_s
            record.ended_at = min(ended_at, record.ended_at or ended_at)
        beat = vitals.beat
        if beat is not None and interval_s > 0:
            # A step belongs to a phase only when the phase was there before the step began.
            inside = beat.phase_age_s > beat.age_s + interval_s
            gen.pace(beat.phase if inside else "").note(interval_s)

    def _believed_interval_s(self, record: RankRecord, vitals: RankVitals, now: float) -> float:
        """Return the seconds of a step since the previous report; 0 when there was none.

        Steps took no longer than what passed since the beat of the previous report. The process
        itself writes the times that the agent reads.
        """
        before, beat = record.vitals.beat, vitals.beat
        if before is None or beat is None or before is beat or beat.advanced <= 0:
            return 0.0
        # One interval more: the previous report may have been on its way for so long.
        passed_s = before.age_s + now - record.seen_at + self.nodes[record.key.node].interval_s
        return min(beat.interval_s, passed_s / beat.advanced)

    def _drop_rivals(self, name: str, node: str, reported: set[ProcessKey]) -> None:
        job = self.jobs.get(name)
        rivals = job.generation.rivals if job else {}
        for key in [key for key in rivals if key.node == node and key not in reported]:
            del rivals[key]

    def _is_on(self, node: str, name: str, rank: int) -> bool:
        """Whether a rank is taken by a process on this node. What else a node claims is not kept
        with it."""
        job = self.jobs.get(name)
        record = job.generation.ranks.get(rank) if job else None
        return record is not None and record.key.node == node

    def _is_awaited(self, name: str, rank: int, node: str, now: float) -> bool:
        """Whether a rank that its node no longer reports may still come back; else it has ended.

        An agent that restarted needs a moment to find its ranks again.
        """
        job = self.jobs.get(name)
        record = job.generation.ranks.get(rank) if job else None
        if record is None or record.key.node != node or not record.is_live:
            return False
        holder = self.nodes[node]
        if record.reporter != holder.agent_id and holder.shared_at > record.seen_at:
            return True  # it is another agent's under the same name: that one may be gone
        if record.missing_since is None:
            record.missing_since = now
        if now - record.missing_since < self._policy.vanish_s:
            return True
        record.ended_at = record.missing_since
        record.vitals = _without_process(record.vitals, now - record.missing_since)
        return False


def _without_process(vitals: RankVitals, age_s: float) -> RankVitals:
    return replace(vitals, ended=Ending(kind=EndingKind.UNKNOWN, age_s=age_s))
