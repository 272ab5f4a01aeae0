"""The fleet: maps processes to the ranks of jobs. It is computed from reports alone.

* (node, pid, start time) identifies a process; its rank does not.
* A new attempt of a job begins when a rank is reported as a different process.
* Processes of different owners belong to different jobs.
* The state is updated in place, and not stored: reports build it again after a restart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set

from watchtower.fleet.account import Account, Holder
from watchtower.fleet.claims import Claim, SkippedClaims, label_unwatched
from watchtower.fleet.half_started import list_waiting
from watchtower.fleet.labels import Labels
from watchtower.fleet.nodes import (
    HeldRank,
    NodeRecord,
    find_old_nodes,
    find_silent_node,
)
from watchtower.fleet.placing import Placing
from watchtower.jobs.attempt import Attempt, PastAttempt
from watchtower.jobs.detector import Detector
from watchtower.jobs.keeper import Keeper, PastJob
from watchtower.jobs.pace import Pause, Pauses
from watchtower.jobs.ranks import ProcessKey, RankRecord
from watchtower.policy import Policy
from watchtower.service.sharing import Quota, keep_fairly
from watchtower.wire.bounds import MAX_WORLD_SIZE
from watchtower.wire.dumps import RankDump, SentBatch
from watchtower.wire.report import RankVitals, Report

MAX_JOBS = 4096
"""Most jobs in memory, including ended ones. Further ones are skipped."""

MAX_JOBS_PER_NODE = 512
"""Most jobs in memory that one node was the first to report, including ended ones."""

MAX_RANKS = MAX_WORLD_SIZE
"""Most ranks of all jobs in memory: twice the largest job that the design supports. Each takes
about 2 KB and is checked twice a second. Further ranks are skipped."""

MAX_STORED_BYTES = 256 * 1024 * 1024
"""Most bytes of jobs and nodes in memory, except one record per rank (see `account`): two rounds
of dumps of 131,072 ranks at 1 KB each."""

RANKS, CASES, PAUSES, STEPS = "job", "cases of", "pauses of", "steps of"
"""Names in the account of the data of a job that grow and may be dropped."""

AGENTS = ""
"""Owner of the sentences that agents report about themselves."""

NEARLY_FULL = 0.5
"""Above this share of `MAX_JOBS` or `MAX_RANKS`, ended and lost jobs are no longer shown."""

MAX_NODES = 65_536
"""Most nodes in memory. A further one replaces a silent node without ranks, or is refused."""

MAX_PAST = 20_000
"""Most ended jobs whose number of attempts is stored. If there are an eighth more, the owners
with the most of them lose their oldest ones."""


class FleetFullError(Exception):
    """A limit of the fleet is reached. The message contains the limit."""


class Fleet:
    """All nodes and jobs. `take_report` and `take_dumps` are the only inputs."""

    def __init__(
        self, policy: Policy, *, max_jobs: int = MAX_JOBS, max_nodes: int = MAX_NODES
    ) -> None:
        self._policy = policy
        self.detector = Detector(policy)
        self._max_jobs = max_jobs
        self._max_nodes = max_nodes
        self.nodes: dict[str, NodeRecord] = {}
        """By name. The one that was silent for longest is the first."""
        self.jobs: dict[str, Keeper] = {}
        """By label."""
        self.past: dict[str, PastJob] = {}
        """Jobs that are not in `jobs`, in the order of their ends."""
        self.labels = Labels(self._holder_of)
        self.placing = Placing(self.jobs, self.past, self.labels)
        self._ranks, self._jobs = Quota(), Quota()
        self._founded: defaultdict[str, Quota] = defaultdict(Quota)
        """Jobs in memory, by the node that reported them first."""
        self.account = Account()

    def recall(
        self,
        attempts: Mapping[str, PastAttempt],
        pauses: Mapping[str, Iterable[Pause]],
    ) -> None:
        """Continue with what the tower's last run knew of its jobs."""
        for label, last in attempts.items():
            known = Pauses(tuple(pauses.get(label, ())))
            self.past[label] = PastJob(last, known)
            self.placing.recall(label, last.processes)
            self.count_kept(PAUSES, label, known)

    def fade_pauses(self, share: float) -> None:
        """Multiply the lengths of the pauses of all jobs by `share`."""
        for past in self.past.values():
            past.pauses.fade(share)
        for job in self.jobs.values():
            job.pauses.fade(share)

    def take_report(self, report: Report, now: float) -> dict[str, Exception]:
        """Update the fleet with the report of one node. Raises FleetFullError at too many nodes.

        Returns errors by job: an error in one job does not affect the rest of the report.
        """
        self._make_room_for_node(report.node)
        previous = self.nodes.pop(report.node, None)
        node = NodeRecord.of(report, previous, now, self._policy.silence_s)
        self.nodes[report.node] = node
        if report.unwatched:
            node.unwatched = tuple(label_unwatched(report, self.labels.find))
        held = None
        if previous is not None:
            held = self.placing.find_held(report, node, previous)
        labels, failed = (
            self._update_held(node, held)
            if held is not None
            else self._place_ranks(report, node, previous)
        )
        if report.waiting or (previous is not None and previous.waits_in):
            labels |= self._place_launchers(report, node, previous)
        # The sentences of all agents have one owner, so that many node names get no larger share.
        self.account.note(("node", report.node), node, AGENTS, report.node)
        self._count_bytes(*labels)
        return failed

    def _update_held(
        self, node: NodeRecord, reported: Iterable[RankVitals]
    ) -> tuple[Set[str], dict[str, Exception]]:
        """Update ranks that the same processes still hold. Returns the jobs, and errors by job."""
        failed = dict[str, Exception]()
        for (label, record), vitals in zip(node.held, reported, strict=True):
            try:
                self.jobs[label].attempt.take_vitals(record, vitals, node.reporter, self._policy)
            except Exception as error:
                failed[label] = error
        return node.labels, failed

    def _place_ranks(
        self, report: Report, node: NodeRecord, previous: NodeRecord | None
    ) -> tuple[Set[str], dict[str, Exception]]:
        """Decide which rank each process of a report is. Returns the jobs, and errors by job."""
        keys = [ProcessKey(report.node, each.pid, each.start_time) for each in report.ranks]
        reported = set(keys)
        over = node.find_over(report, previous) if previous is not None else set()
        node.over, node.is_settled = over, True
        claims = [
            Claim(key, vitals, reported, self.nodes, self._policy, node.seen_at)
            for key, vitals in zip(keys, report.ranks, strict=True)
            if key[1:] not in over
        ]
        labels, failed, skipped = set[str](), dict[str, Exception](), SkippedClaims()
        held = dict[ProcessKey, HeldRank]()
        for label, claim, joins in self.placing.place(claims, report, previous):
            labels.add(label)
            try:
                if joins:
                    self._take_vitals(label, claim)
                else:
                    self._note_second_claim(label, claim)
            except Exception as error:
                failed[label] = error
            self._note_place(node, held, label, claim, joins=joins)
            skipped.note(label, claim, self.jobs.get(label))
        node.held = tuple(held[key] for key in keys if key in held and self._is_current(held[key]))
        for each in node.held:
            each.record.deadline = None  # the names in it may be others now
        node.unwatched += (*skipped.list(),)
        live = {key for key, each in zip(keys, report.ranks, strict=True) if each.ended is None}
        for name in labels:
            self._drop_rivals(name, report.node, live)
        if previous is not None:
            self._end_missing(report, node, previous)
        node.labels = frozenset(label for label, _ in node.ranks)
        return labels, failed

    def _place_launchers(
        self, report: Report, node: NodeRecord, previous: NodeRecord | None
    ) -> Set[str]:
        """Note which launchers of a node wait, in their jobs. Return the labels of these jobs."""
        for each, began_at in list_waiting(report, node.seen_at, self.jobs.values()):
            label = self.labels.find(each.job, each.owner)
            job = self.jobs.get(label) or self._new_job(label, report.node, each.owner, began_at)
            if job is not None and not job.attempt.ranks:
                self._note_name(job, each.job, each.owner)
                job.attempt.launchers.note(report.node, each, node.seen_at)
                node.waits_in |= {label}
        before = previous.waits_in if previous is not None else frozenset[str]()
        for label in before - node.waits_in:
            if (left := self.jobs.get(label)) is not None:
                left.attempt.launchers.leave(report.node, node.seen_at)
        return node.waits_in

    def _note_place(
        self,
        node: NodeRecord,
        held: dict[ProcessKey, HeldRank],
        label: str,
        claim: Claim,
        *,
        joins: bool,
    ) -> None:
        """Record which rank a process of a node holds now, if any."""
        job = self.jobs.get(label)
        record = self._record_on(claim.key.node, label, claim.vitals.rank)
        if record is not None:
            node.ranks.add((label, claim.vitals.rank))
        if record is not None and record.key == claim.key:
            held[claim.key] = HeldRank(label, record)
        elif claim.is_over(job.retired if job else (), joins=joins):
            node.over.add(claim.key[1:])
        else:
            node.is_settled = False

    def _make_room_for_node(self, name: str) -> None:
        if name in self.nodes or len(self.nodes) < self._max_nodes:
            return
        silent = find_silent_node(self.nodes)
        if silent is None:
            raise FleetFullError(
                f"{name} is refused: the tower already has {self._max_nodes} nodes"
            )
        del self.nodes[silent]
        self.account.remove(("node", silent))

    def take_dumps(self, sent: SentBatch, now: float) -> list[RankDump]:
        """Add dumps to their ranks. Returns the dumps that were not added before."""
        job = self.jobs.get(self.placing.find_label_of_dumps(sent.batch))
        if job is None:
            return []
        return self.recall_dumps(job, sent, now - sent.batch.held_s)

    def recall_dumps(self, job: Keeper, sent: SentBatch, taken_at: float) -> list[RankDump]:
        """Add dumps that were taken at `taken_at` to a job. Returns the same as `take_dumps`."""
        taken = job.attempt.take_dumps(sent, taken_at)
        self._count_bytes(job.name)
        return taken

    def count_kept(self, what: str, label: str, kept: Holder) -> None:
        """Update the account with other data of a job that the tower stores in memory.

        Data of an ended job counts until the tower removes it from the account.
        """
        job, past = self.jobs.get(label), self.past.get(label)
        owner = job.sharer if job else past and past.last.owner
        self.account.note((what, label), kept, owner or label, job.founder if job else "")
        self.account.keep_to(MAX_STORED_BYTES)

    def _count_bytes(self, *labels: str) -> None:
        """Update the account with these jobs, and drop data beyond the limit."""
        for job in filter(None, map(self.jobs.get, labels)):
            self.account.note((RANKS, job.name), job, job.sharer, job.founder)
        self.account.keep_to(MAX_STORED_BYTES)

    @property
    def rank_count(self) -> int:
        """Number of ranks of all jobs."""
        return self._ranks.total

    def is_nearly_full_for(self, job: Keeper) -> bool:
        """Return whether few new jobs are possible: of any owner, or of the owner of this job."""
        if self.is_nearly_full or self._jobs.is_nearly_full(job.owner, self._max_jobs):
            return True
        return self._founded[job.founder].is_nearly_full(job.owner, MAX_JOBS_PER_NODE)

    @property
    def is_nearly_full(self) -> bool:
        """Whether few new jobs or ranks are possible."""
        return (
            len(self.jobs) > NEARLY_FULL * self._max_jobs
            or self.rank_count > NEARLY_FULL * MAX_RANKS
        )

    def drop_old(self, now: float) -> None:
        """Drop rivals that are not reported, and nodes without ranks after `NODE_MEMORY_S`."""
        self.placing.drop_old(now, self._policy.silence_s)
        for job in self.jobs.values():
            if job.attempt.rivals:
                job.attempt.expire_rivals(now)
                self._count_bytes(job.name)
        for node in self.nodes.values():
            if (node.held or node.over) and now > node.reporter.silent_from:
                node.forget_processes()
        old = find_old_nodes(self.nodes, self.jobs.values(), now)
        for name in old:
            del self.nodes[name]
            self.account.remove(("node", name))

    def forget(self, name: str) -> None:
        """Drop a job. Only its number of attempts, its owner and its pauses are still stored."""
        job = self.jobs.pop(name)
        self.labels.drop(name)
        for what in (RANKS, CASES, STEPS):
            self.account.remove((what, name))
        last = PastAttempt(number=job.attempt.number, owner=job.owner)
        self.past[name] = PastJob(last, job.pauses)
        self._count(job, job.owner, -1)
        if not self._founded[job.founder].total:
            del self._founded[job.founder]
        self.count_kept(PAUSES, name, job.pauses)
        self._drop_past()

    def _drop_past(self) -> None:
        """Drop ended jobs so that `MAX_PAST` of them are left, if there are an eighth more.

        This is rare, because it checks every job.
        """
        if len(self.past) <= MAX_PAST + MAX_PAST // 8:
            return
        owned = ((self.past[name].last.owner, name) for name in reversed(self.past))
        for gone in self.past.keys() - keep_fairly(owned, MAX_PAST):
            del self.past[gone]
            self.account.remove((PAUSES, gone))

    def _holder_of(self, label: str) -> str | None:
        if label in self.jobs:
            return self.jobs[label].owner
        return self.past[label].last.owner if label in self.past else None

    def _note_second_claim(self, label: str, claim: Claim) -> None:
        """Record a process of a launch that is not of this job, and not known to be another."""
        job = self.jobs.get(label)
        if job is not None and claim.vitals.ended is None:
            job.attempt.note_rival(claim.key, claim.vitals, claim.now)

    def _separate(self, job: Keeper, record: RankRecord, claim: Claim) -> bool:
        """Return whether the rank is free now: the launch of its record is another job's."""
        gone = self.placing.separate(job, record, claim)
        for rank in gone:
            job.attempt.remove(rank)
        self._ranks.add(job.owner, -len(gone))
        return claim.vitals.rank in gone

    def _note_name(self, job: Keeper, name: str, owner: str) -> None:
        """Record a name that agents use for a job, and its owner."""
        if not self.labels.bind(name, owner, job.name):
            return
        if owner and owner != job.owner:
            self._count(job, job.owner, -1)
            job.owner = owner
            self._count(job, job.owner, 1)

    def _count(self, job: Keeper, owner: str, sign: int) -> None:
        """Add a job to the quotas of its owner (`sign` 1), or remove it (-1)."""
        self._jobs.add(owner, sign)
        self._founded[job.founder].add(owner, sign)
        self._ranks.add(owner, sign * len(job.attempt.ranks))

    def _take_vitals(self, label: str, claim: Claim) -> None:
        vitals, key = claim.vitals, claim.key
        job = self.jobs.get(label) or self._new_job_of(label, claim)
        if job is None:
            self.labels.drop(label)  # the job was refused: its launch must not be stored
            return
        self._note_name(job, vitals.job, vitals.owner)
        attempt = job.attempt
        record = attempt.ranks.get(vitals.rank)
        if record is not None and record.key == key:
            if not claim.is_of_another_agent(record):
                attempt.take_vitals(record, vitals, self.nodes[key.node].reporter, self._policy)
        elif key in job.retired:
            if record is None and claim.goes_on(job.retired[key]):
                del job.retired[key]
                self._join(job, claim)
        elif record is None and claim.is_history(attempt):
            job.retire([key], claim.now)
        elif record is None and not claim.comes_after(attempt):
            self._join(job, claim)
        else:
            self._weigh_claim(job, record, claim)

    def _weigh_claim(self, job: Keeper, record: RankRecord | None, claim: Claim) -> None:
        """Record a process whose rank belongs to another process, or whose job has ended."""
        attempt = job.attempt
        if record is not None and claim.is_renamed(record):
            attempt.rivals.pop(claim.key, None)
            record.key = claim.key
            attempt.take_vitals(
                record, claim.vitals, self.nodes[claim.key.node].reporter, self._policy
            )
        elif claim.vitals.ended is not None and not claim.followed(attempt):
            job.retire([claim.key], claim.now)
        elif record is not None and claim.is_held(record) and self._separate(job, record, claim):
            self._join(job, claim)
        elif record is not None and claim.takes_over(record):
            self._join(job, claim)
            attempt.note_rival(record.key, record.vitals, record.seen_at)
        elif claim.is_rival(attempt, record):
            attempt.note_rival(claim.key, claim.vitals, claim.now)
        elif job.attempts.may_begin(claim.now):
            job.retire((r.key for r in attempt.ranks.values()), claim.now)
            self._ranks.add(job.owner, -len(attempt.ranks))
            job.attempt = attempt.follow(claim.now)
            self._join(job, claim)

    def _new_job_of(self, label: str, claim: Claim) -> Keeper | None:
        """Return a new job with the process of a claim, or None if there is nothing to watch."""
        vitals = claim.vitals
        past = self.past.get(label)
        is_known = past is not None and claim.key in past.last.processes
        is_old = vitals.ended is not None and vitals.ended.age_s > self._policy.silence_s
        if is_old and not is_known:
            return None  # it ended before this tower started
        began_at = claim.now - vitals.found_age_s
        return self._new_job(label, claim.key.node, vitals.owner, began_at, claim)

    def _new_job(
        self, label: str, node: str, owner: str, began_at: float, claim: Claim | None = None
    ) -> Keeper | None:
        """Return a new job; None if there is no room. `claim`: its first process, if any."""
        known = self.past.get(label) or PastJob(PastAttempt(number=0))
        past = known.last
        is_known = claim is not None and claim.key in past.processes
        owner = owner or past.owner
        has_room = (
            self._jobs.has_room(owner, self._max_jobs)
            and self._ranks.has_room(owner, MAX_RANKS)
            and self._founded[node].has_room(owner, MAX_JOBS_PER_NODE)
        )
        if not has_room:
            return None
        self.past.pop(label, None)
        attempt = Attempt(label, past.number + (not is_known), began_at)
        if is_known and claim is not None:
            attempt.pace("").recall(past.typical_step_s)
            attempt.known, attempt.awaited, attempt.recalled_at = (
                past.processes,
                set(past.processes),
                claim.now,
            )
        job = self.jobs[label] = Keeper(label, attempt, self.detector, node, owner)
        job.pauses = known.pauses
        self._count(job, owner, 1)
        if not is_known:
            job.retire(past.processes, began_at if claim is None else claim.now)
        return job

    def _join(self, job: Keeper, claim: Claim) -> None:
        attempt = job.attempt
        if not attempt.ranks and attempt.launchers.has_waited:
            # What was decided about its launchers says nothing about the ranks.
            attempt = job.attempt = Attempt(job.name, attempt.number, claim.now)
        attempt.rivals.pop(claim.key, None)
        is_new = claim.vitals.rank not in attempt.ranks
        if is_new and not self._ranks.has_room(job.owner, MAX_RANKS):
            return
        self._ranks.add(job.owner, is_new)
        record = RankRecord(
            key=claim.key,
            vitals=claim.vitals,
            reporter=self.nodes[claim.key.node].reporter,
            seen_at=claim.now,
            first_seen_at=claim.now - claim.vitals.found_age_s,
            computed_at=claim.now,
            moved_data_at=claim.now,
        )
        attempt.put(record)
        attempt.awaited.discard(claim.key)
        attempt.recall_wanted = attempt.arrivals.claim(claim.vitals.rank) or attempt.recall_wanted
        attempt.began_at = min(attempt.began_at, record.first_seen_at)
        attempt.take_vitals(record, claim.vitals, self.nodes[claim.key.node].reporter, self._policy)

    def _drop_rivals(self, name: str, node: str, live: set[ProcessKey]) -> None:
        """Drop the rivals of a job on a node that has just reported its live processes."""
        job = self.jobs.get(name)
        rivals = job.attempt.rivals if job else {}
        for key in [key for key in rivals if key.node == node and key not in live]:
            del rivals[key]

    def _record_on(self, node: str, name: str, rank: int) -> RankRecord | None:
        """Return the record of a rank if a process on this node holds the rank."""
        job = self.jobs.get(name)
        record = job.attempt.ranks.get(rank) if job else None
        return record if record is not None and record.key.node == node else None

    def _is_current(self, held: HeldRank) -> bool:
        """Return whether a process still holds its rank: a later claim may have ended that."""
        job, record = self.jobs.get(held.label), held.record
        return job is not None and job.attempt.ranks.get(record.vitals.rank) is record

    def _end_missing(self, report: Report, node: NodeRecord, previous: NodeRecord) -> None:
        """End the ranks that a node's report lacks and whose process is gone."""
        missing = previous.ranks - node.ranks
        records = {item: self._record_on(report.node, *item) for item in missing}
        live = {item: record for item, record in records.items() if record and record.is_live}
        for record in node.note_missing(live, previous, report):
            record.vanish(node.seen_at)
