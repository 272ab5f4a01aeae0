"""The fleet: which processes are which ranks of which job, rebuilt from reports at any time.

The two rules of this file: a process is known by (node, pid, start time), never by its rank; and a
new generation of a job begins when a rank comes back as another process. Reports are the only
input; everything is soft state, updated in place.
"""

from __future__ import annotations

from dataclasses import replace

from watchtower.core.generation import (
    Generation,
    Job,
    NodeRecord,
    PastGeneration,
    ProcessKey,
    RankRecord,
    has_died,
)
from watchtower.core.policy import Policy
from watchtower.wire.dumps import DumpBatch
from watchtower.wire.report import Ending, EndingKind, ProcessState, RankVitals, Report

MAX_JOBS = 4096
"""Jobs kept in memory, ended ones included until they are forgotten; further ones are left out, so
that a node which invents jobs does not hide the ranks of real ones."""

MAX_NODES = 65_536
"""Nodes kept in memory; reports of further ones are refused."""

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
        self.refused_jobs = 0
        """Ranks of new jobs that were not taken because `max_jobs` are known already."""

    def take_report(self, report: Report, now: float) -> None:
        """Bring the fleet up to date with one node. Raises FleetFullError at a bound."""
        if report.node not in self.nodes and len(self.nodes) >= self._max_nodes:
            raise FleetFullError(
                f"{self._max_nodes} nodes are known already, {report.node} is refused"
            )
        previous = self.nodes.get(report.node)
        node = NodeRecord(
            agent_id=report.agent_id,
            seen_at=now,
            interval_s=report.interval_s,
            limits=report.limits,
            ranks={(vitals.job, vitals.rank) for vitals in report.ranks},
        )
        self.nodes[report.node] = node
        reported = {ProcessKey(report.node, v.pid, v.start_time) for v in report.ranks}
        for vitals in sorted(report.ranks, key=_precedence):
            self._take_vitals(report.node, vitals, reported, now)
        for name in {name for name, _ in node.ranks}:
            self._drop_rivals(name, report.node, reported)
        for name, rank in (previous.ranks if previous else set()) - node.ranks:
            if self._is_awaited(name, rank, report.node, now):
                node.ranks.add((name, rank))

    def take_dumps(self, batch: DumpBatch, now: float) -> bool:
        """Attach dumps to the ranks they were taken of; False when the job is not known."""
        job = self.jobs.get(batch.job)
        if job is None:
            return False
        gen, taken_at = job.generation, now - batch.held_s
        if not gen.is_new_batch(batch.id):
            return True
        for dump in batch.ranks:
            record = gen.ranks.get(dump.rank)
            if record and record.key == ProcessKey(batch.node, dump.pid, dump.start_time):
                dumps = [*record.dumps, (taken_at, dump)]
                record.dumps = sorted(dumps, key=lambda item: item[0])[-2:]
        gen.keep_stacks(batch.stacks)
        return True

    def drop_old_nodes(self, now: float) -> None:
        """Forget nodes that have been silent for long and hold no rank of a live job."""
        old = {name for name, node in self.nodes.items() if now - node.seen_at > NODE_MEMORY_S}
        if old:
            jobs = self.jobs.values()
            old -= {r.key.node for job in jobs for r in job.generation.ranks.values()}
        for name in old:
            del self.nodes[name]

    def forget(self, name: str) -> None:
        """Drop a job, remembering only how many generations it had."""
        self.past[name] = PastGeneration(number=self.jobs.pop(name).generation.number)

    def _take_vitals(
        self, node: str, vitals: RankVitals, reported: set[ProcessKey], now: float
    ) -> None:
        key = ProcessKey(node, vitals.pid, vitals.start_time)
        job = self.jobs.get(vitals.job) or self._new_job(key, vitals, now)
        if job is None:
            return
        gen = job.generation
        record = gen.ranks.get(vitals.rank)
        if record is not None and record.key == key:
            self._update(gen, record, vitals, now)
        elif key in job.retired:
            if record is None and self._goes_on(job.retired[key], vitals, now):
                del job.retired[key]
                self._join(gen, key, vitals, now)
        elif record is None and not self._is_over(gen, now):
            self._join(gen, key, vitals, now)
        elif vitals.ended is not None:
            job.retire([key], now)
        elif self._is_rival(gen, record, vitals, reported, now):
            gen.rivals[key] = (vitals, now)
        else:
            self._begin_generation(job, now)
            self._join(job.generation, key, vitals, now)

    def _goes_on(self, retired_at: float, vitals: RankVitals, now: float) -> bool:
        """Whether a process of the last generation lives on in this one.

        Most launchers end every rank when one comes back; some replace only that one. Who steps, or
        is still there after a while, was not ended.
        """
        if vitals.ended is not None:
            return False
        stepped = vitals.beat is not None and vitals.beat.advanced > 0
        return stepped or now - retired_at > self._policy.vanish_s

    def _new_job(self, key: ProcessKey, vitals: RankVitals, now: float) -> Job | None:
        if vitals.ended is not None and vitals.ended.age_s > self._policy.silence_s:
            return None  # it ended before this tower looked: history, not a job to watch
        if len(self.jobs) >= self._max_jobs:
            self.refused_jobs += 1
            return None
        past = self.past.pop(vitals.job, PastGeneration(number=0))
        is_known = key in past.processes
        gen = Generation(vitals.job, past.number + (not is_known), now - vitals.found_age_s)
        if is_known:
            gen.pace("").recall(past.typical_step_s)
        self.jobs[vitals.job] = Job(vitals.job, gen)
        return self.jobs[vitals.job]

    def _is_rival(
        self,
        gen: Generation,
        record: RankRecord | None,
        vitals: RankVitals,
        reported: set[ProcessKey],
        now: float,
    ) -> bool:
        """Whether a second process only claims a rank that is another's.

        What is run beside a rank inherits its environment, and with it the rank; but a heartbeat
        page is made by training code alone. A restarted rank has its page after its imports.
        """
        before = [record] if record is not None else list(gen.ranks.values())
        if vitals.beat is None and any(r.vitals.beat is not None for r in before):
            return True
        return record is not None and self._is_held(record, reported, now)

    def _is_held(self, record: RankRecord, reported: set[ProcessKey], now: float) -> bool:
        if not record.is_live:
            return False
        if any(key.node == record.key.node for key in reported):
            return record.key in reported
        holder = self.nodes.get(record.key.node)
        return holder is not None and now - holder.seen_at <= self._policy.silence_s

    def _is_over(self, gen: Generation, now: float) -> bool:
        """Whether a rank not seen before belongs to the next generation: this one has ended.

        A rank that crashes at once may be gone before the others have appeared.
        """
        if not gen.ranks or any(True for _ in gen.live()):
            return False
        is_young = now - gen.began_at < self._policy.startup_grace_s
        return not (is_young and any(has_died(record) for record in gen.ranks.values()))

    def _begin_generation(self, job: Job, now: float) -> None:
        job.retire((record.key for record in job.generation.ranks.values()), now)
        job.generation = Generation(job.name, job.generation.number + 1, now)

    def _join(self, gen: Generation, key: ProcessKey, vitals: RankVitals, now: float) -> None:
        record = RankRecord(
            key=key,
            vitals=vitals,
            seen_at=now,
            first_seen_at=now - vitals.found_age_s,
            moved_at=now,
        )
        gen.ranks[vitals.rank] = record
        gen.began_at = min(gen.began_at, record.first_seen_at)
        self._update(gen, record, vitals, now)

    def _update(self, gen: Generation, record: RankRecord, vitals: RankVitals, now: float) -> None:
        if record.vitals.state is ProcessState.STOPPED is not vitals.state and all(
            other.vitals.state is ProcessState.STOPPED for other in gen.live()
        ):
            gen.resumed_at = now  # the first rank to go on after the whole job was suspended
        record.vitals = vitals
        record.seen_at = now
        record.missing_since = None
        record.ended_at = None if vitals.ended is None else record.ended_at
        movement = vitals.movement
        bytes_per_s = movement.write_bytes_per_s + movement.read_bytes_per_s
        if movement.cpu_cores >= self._policy.moving_cpu_cores or bytes_per_s > 0:
            record.moved_at = now
        if vitals.ended is not None and record.ended_at is None:
            record.ended_at = now - vitals.ended.age_s
        beat = vitals.beat
        if beat is not None and beat.advanced > 0:
            # A step belongs to a phase only when the phase was there before the step began.
            inside = beat.phase_age_s > beat.age_s + beat.interval_s
            gen.pace(beat.phase if inside else "").note(beat.interval_s)

    def _drop_rivals(self, name: str, node: str, reported: set[ProcessKey]) -> None:
        job = self.jobs.get(name)
        rivals = job.generation.rivals if job else {}
        for key in [key for key in rivals if key.node == node and key not in reported]:
            del rivals[key]

    def _is_awaited(self, name: str, rank: int, node: str, now: float) -> bool:
        """Whether a rank that its node no longer reports may still come back; else it has ended.

        An agent that restarted needs a moment to find its ranks again.
        """
        job = self.jobs.get(name)
        record = job.generation.ranks.get(rank) if job else None
        if record is None or record.key.node != node or not record.is_live:
            return False
        if record.missing_since is None:
            record.missing_since = now
        if now - record.missing_since < self._policy.vanish_s:
            return True
        record.ended_at = record.missing_since
        record.vitals = _without_process(record.vitals, now - record.missing_since)
        return False


def _precedence(vitals: RankVitals) -> tuple[bool, bool, int]:
    """Order processes that claim the same rank: the first one gets it.

    Live ones before the remains of their predecessors, and of those the youngest; with a page
    before without; of the live ones the oldest, since what a rank starts is younger than the rank.
    """
    has_ended = vitals.ended is not None
    age = -vitals.start_time if has_ended else vitals.start_time
    return has_ended, vitals.beat is None, age


def _without_process(vitals: RankVitals, age_s: float) -> RankVitals:
    return replace(vitals, ended=Ending(kind=EndingKind.UNKNOWN, age_s=age_s))
