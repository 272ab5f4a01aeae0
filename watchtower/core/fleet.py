"""The fleet: which processes are which ranks of which job, rebuilt from reports at any time.

The two rules of this file: a process is known by (node, pid, start time), never by its rank; and a
new generation of a job begins when a rank comes back as another process. Reports are the only
input; everything is soft state, updated in place.
"""

from __future__ import annotations

from dataclasses import replace

from watchtower.core.generation import Generation, Job, NodeRecord, ProcessKey, RankRecord
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
        self.last_generations: dict[str, int] = {}
        """Number of the last generation of jobs that are not live (any more)."""
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
        # Live processes first, then the youngest: a rank that came back must not lose its place
        # to the remains of its predecessor.
        reported = {ProcessKey(report.node, v.pid, v.start_time) for v in report.ranks}
        for vitals in sorted(report.ranks, key=lambda v: (v.ended is not None, -v.start_time)):
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
        taken_at = now - batch.held_s
        for dump in batch.ranks:
            record = job.generation.ranks.get(dump.rank)
            if record and record.key == ProcessKey(batch.node, dump.pid, dump.start_time):
                record.dumps = [*record.dumps, (taken_at, dump)][-2:]
        job.generation.keep_stacks(batch.stacks)
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
        job = self.jobs.pop(name)
        self.last_generations[name] = job.generation.number

    def _take_vitals(
        self, node: str, vitals: RankVitals, reported: set[ProcessKey], now: float
    ) -> None:
        key = ProcessKey(node, vitals.pid, vitals.start_time)
        job = self.jobs.get(vitals.job) or self._new_job(vitals, now)
        if job is None or key in job.retired:
            return
        record = job.generation.ranks.get(vitals.rank)
        if record is not None and record.key == key:
            self._update(job.generation, record, vitals, now)
            return
        if record is not None or self._is_over(job.generation, vitals):
            if vitals.ended is not None:
                job.retire([key])
                return
            if record is not None and self._is_held(record, node, reported, now):
                job.generation.rivals[key] = (vitals, now)
                return
            self._begin_generation(job, now)
        job.generation.rivals.pop(key, None)
        self._join(job.generation, key, vitals, now)

    def _new_job(self, vitals: RankVitals, now: float) -> Job | None:
        if vitals.ended is not None and vitals.ended.age_s > self._policy.silence_s:
            return None  # it ended before this tower looked: history, not a job to watch
        if len(self.jobs) >= self._max_jobs:
            self.refused_jobs += 1
            return None
        number = self.last_generations.get(vitals.job, 0) + 1
        began_at = now - vitals.found_age_s
        job = Job(vitals.job, Generation(vitals.job, number, began_at))
        self.jobs[vitals.job] = job
        return job

    def _is_held(
        self, record: RankRecord, node: str, reported: set[ProcessKey], now: float
    ) -> bool:
        """Whether the process that holds a rank is still there, so that another is its rival."""
        if not record.is_live:
            return False
        if record.key.node == node:
            return record.key in reported
        holder = self.nodes.get(record.key.node)
        return holder is not None and now - holder.seen_at <= self._policy.silence_s

    @staticmethod
    def _is_over(generation: Generation, vitals: RankVitals) -> bool:
        """Whether a rank not seen yet belongs to the next generation: all of this one ended."""
        return bool(generation.ranks) and not any(True for _ in generation.live())

    def _begin_generation(self, job: Job, now: float) -> None:
        job.retire(record.key for record in job.generation.ranks.values())
        job.retire(job.generation.rivals)
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
        movement = vitals.movement
        bytes_per_s = movement.write_bytes_per_s + movement.read_bytes_per_s
        if movement.cpu_cores >= self._policy.moving_cpu_cores or bytes_per_s > 0:
            record.moved_at = now
        if vitals.ended is not None and record.ended_at is None:
            record.ended_at = now - vitals.ended.age_s
        beat = vitals.beat
        if beat is not None and beat.advanced > 0:
            gen.pace(beat.phase).note(beat.interval_s)

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
        if now - record.seen_at < self._policy.vanish_s:
            return True
        record.ended_at = record.seen_at
        record.vitals = _without_process(record.vitals, now - record.seen_at)
        return False


def _without_process(vitals: RankVitals, age_s: float) -> RankVitals:
    return replace(vitals, ended=Ending(kind=EndingKind.UNKNOWN, age_s=age_s))
