"""The keeper of a job: the only owner of its state.

What agents report, dumps, diagnoses, acts of people and `now` go in. What must follow comes out as
effects, which the tower carries out in order. A keeper knows no other job: of the nodes that it is
given it sees what their agents report, not which ranks they have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from watchtower.incidents.incident import Ack, Incident, JobFacts, ShadowMode
from watchtower.jobs.aftermath import Loss, find_losses
from watchtower.jobs.agents import NodeReport
from watchtower.jobs.attempt import Attempt, PastAttempt
from watchtower.jobs.case_inputs import is_dumped_since
from watchtower.jobs.condition import Condition, ConditionKind
from watchtower.jobs.detector import Detector
from watchtower.jobs.effects import (
    AttemptBegun,
    DumpsWanted,
    Effect,
    RecallWanted,
    SeriesWanted,
    StoreWanted,
)
from watchtower.jobs.incidents import AttemptWatch
from watchtower.jobs.judgement import Judgement
from watchtower.jobs.measures import JobTotals, StepHistory, find_phase
from watchtower.jobs.no_heartbeat import wants_sample
from watchtower.jobs.pace import Pauses
from watchtower.jobs.ranks import RANK_BYTES, ProcessKey, RankRecord
from watchtower.jobs.stall_context import StallContext, stall_context_of
from watchtower.jobs.tracing import Tracing, choose_suspects
from watchtower.jobs.verdicts import Tries
from watchtower.service.sharing import TokenBucket
from watchtower.wire.drills import is_drill
from watchtower.wire.dumps import DumpBatch, RankDump
from watchtower.wire.report import JobLabels
from watchtower.wire.series import SeriesBatch
from watchtower.wire.stacks import Stack
from watchtower.wire.verdict import SharedCause, Status

KEY_BYTES = 192
"""A stored process of an earlier attempt."""

PACE_BYTES = 7168
"""The step times of one phase."""


BURST = 6
"""Number of attempts that may begin without a wait. Real jobs need many seconds to start."""

REFILL_S = 10.0
"""Seconds between attempts after the burst: six attempts a minute."""


@dataclass(slots=True)
class AttemptLimit:
    """Limits the attempts of one job."""

    _bucket: TokenBucket = field(default_factory=lambda: TokenBucket(BURST, 1 / REFILL_S))
    _refused_at: float = float("-inf")

    def may_begin(self, now: float) -> bool:
        """Return whether an attempt may begin now; if so, it is counted."""
        if self._bucket.take(now):
            return True
        self._refused_at = now
        return False

    def explain_refusal(self, now: float, within_s: float) -> str:
        """Return a clause if an attempt was refused in the last `within_s` seconds, else empty."""
        if now - self._refused_at > within_s:
            return ""
        return f"it restarts too often: its next attempt is watched after at most {REFILL_S:g} s"


MIN_RETIRED = 1024
RETIRED_PER_RANK = 64
"""A job stores `RETIRED_PER_RANK` processes of earlier attempts per rank, but at least
`MIN_RETIRED`. Otherwise their last reports would look like new ranks. An agent reports 256 ended
processes, and a node has eight ranks or more."""

MAX_RETIRED = 262_144
"""Most processes of earlier attempts that one job stores."""


LATE_S = 60.0
"""Seconds after the end of an incident in which its series are still ordered: an incident about the
end of a job is over when it opens."""

FORGET_AFTER_S = 3600.0
"""Seconds that an ended job stays in the live views. Its incidents stay in the store."""

FORGET_LOST_AFTER_S = 6 * 3600.0
"""Seconds after which a job is dropped if all its agents are silent."""

FORGET_CROWDED_AFTER_S = 60.0
"""Both limits if there is little space for new jobs."""


@dataclass(slots=True)
class PastJob:
    """What is known of a job that is not live."""

    last: PastAttempt
    """Its last attempt."""
    pauses: Pauses = field(default_factory=Pauses)
    """The pauses that it has made."""


@dataclass(slots=True, eq=False)
class Keeper:
    """One job through its attempts."""

    name: str
    """The tower's label for it."""
    attempt: Attempt
    """The ranks of its present attempt."""
    detector: Detector
    founder: str = ""
    """Node that reported it first."""
    owner: str = ""
    """Empty until an agent reports an owner."""
    retired: dict[ProcessKey, float] = field(default_factory=dict)
    """Processes of earlier attempts, and when their attempt ended."""
    labels: JobLabels | None = None
    """Labels from its first report that has any. They are only shown to people."""
    attempts: AttemptLimit = field(default_factory=AttemptLimit)
    """Limit on new attempts."""
    pauses: Pauses = field(default_factory=Pauses)
    """The pauses that it has made, also in earlier runs of the tower."""
    judgement: Judgement | None = None
    """What is decided about its present attempt; None before the attempt is watched."""
    steps: StepHistory = field(default_factory=StepHistory)
    totals: JobTotals = field(default_factory=JobTotals)
    tries: Tries = field(default_factory=Tries)
    """How its latest diagnoses went."""
    failing: set[str] = field(default_factory=set)
    """Work on it that failed the last time, so that an error is not logged every second."""
    is_check_due: bool = False
    """New dumps have arrived since its latest check."""

    @property
    def sharer(self) -> str:
        """Key of the fair shares: the owner; the job's own name if the owner is not known."""
        return self.owner or self.name

    @property
    def droppable_bytes(self) -> int:
        """Bytes that it can drop: everything except one record per rank."""
        return sum(self._sizes())

    def drop(self, excess: int) -> None:
        """Drop at least `excess` bytes, largest part first; everything if there are fewer."""
        attempt = self.attempt
        drops: tuple[Callable[[], object], ...] = (
            lambda: attempt.drop_dumps(excess),
            attempt.drop_texts,
            attempt.arrivals.clear,
            attempt.rivals.clear,
            self.retired.clear,
            attempt.drop_paces,
        )
        parts = sorted(zip(self._sizes(), drops, strict=True), key=lambda part: -part[0])
        for size, drop in parts:
            if excess <= 0 or not size:
                return
            before = self.droppable_bytes
            drop()
            excess -= before - self.droppable_bytes

    def _sizes(self) -> tuple[int, ...]:
        """Return the bytes of each part that may be dropped, in the order of `drops` in `drop`."""
        attempt = self.attempt
        return (
            attempt.dumps_bytes,
            attempt.text_bytes,
            attempt.arrivals.size,
            RANK_BYTES * len(attempt.rivals),
            KEY_BYTES * len(self.retired),
            PACE_BYTES * max(0, len(attempt.paces) - 1),
        )

    def has_any(self, ranks: Mapping[ProcessKey, int]) -> bool:
        """Return whether one of these processes is its rank in this job, or was a rank of it."""
        own = self.attempt.ranks
        return any(
            key in self.retired or (rank in own and own[rank].key == key)
            for key, rank in ranks.items()
        )

    def retire(self, keys: Iterable[ProcessKey], now: float) -> None:
        """Record processes of an earlier attempt. Beyond the limit, the oldest are dropped."""
        self.retired.update(dict.fromkeys(keys, now))
        limit = max(MIN_RETIRED, RETIRED_PER_RANK * len(self.attempt.ranks))
        limit = min(limit, MAX_RETIRED)
        while len(self.retired) > limit:
            self.retired.pop(next(iter(self.retired)))

    @property
    def judged(self) -> Judgement:
        """What is decided about its present attempt. Only of a job whose watch has begun."""
        assert self.judgement is not None, f"job {self.name} is not watched yet"
        return self.judgement

    @property
    def is_begun(self) -> bool:
        """Whether its present attempt is watched."""
        return self.judgement is not None and self.judgement.attempt is self.attempt

    def begin(
        self, left: Incident | None, shadow: ShadowMode, now: float, wall: float
    ) -> Iterator[Effect]:
        """Watch the present attempt. `left`: its incident from the tower's last run, if any."""
        if self.judgement is not None:
            text = f"attempt {self.attempt.number} began"
            self.judgement.note_aftermath(text, wall)
            yield from self.judgement.watch.end(text)
        watch = AttemptWatch(policy=self.detector.policy, pauses=self.pauses)
        self.judgement = Judgement(self.name, self.attempt, watch, shadow)
        if left is not None:
            self.judgement.resume(left, now, wall)
        yield AttemptBegun()

    def check(self, nodes: Mapping[str, NodeReport], now: float, wall: float) -> Iterator[Effect]:
        """Judge the present attempt. What comes after an effect uses what it has changed."""
        judgement, attempt = self.judged, self.attempt
        if reason := self._explain_wait(now):
            judgement.watch.reason = reason
            return
        if attempt.recall_wanted and not judgement.is_recalling:
            attempt.recall_wanted, judgement.is_recalling = False, True
            yield RecallWanted()
        if judgement.is_recalling and attempt.known:
            return
        condition = self.detector.judge(attempt, nodes, self.pauses, now, judgement.watch.samples)
        goes_on = condition.kind in (ConditionKind.STEPPING, ConditionKind.SLOW)
        if goes_on and not judgement.has_gone_on():
            return
        if condition.stall is not None and judgement.has_recovered_unseen():
            yield from judgement.watch.recover(now)
        yield from judgement.take_losses(self._find_losses(nodes, now), now)
        judgement.context = self._find_context(nodes, condition, now)
        judgement.missing_dumps = judgement.context.dumps_want - judgement.context.dumps_have
        yield from judgement.watch.advance(condition, judgement.context, now)
        yield from self._begin_sample(nodes, now)
        yield from self._order_reads(now, wall)
        judgement.note_condition(condition.kind, now)
        if attempt.is_paced or condition.kind is ConditionKind.CHANGING:
            yield StoreWanted()

    def _explain_wait(self, now: float) -> str:
        """Return why the job is not judged yet: the tower or the job was restarted; else empty.

        A check would report ranks as missing that are only not reported yet.
        """
        silence_s = self.detector.policy.silence_s
        if reason := self.attempts.explain_refusal(now, silence_s):
            return reason
        if self.attempt.is_returning(now, silence_s):
            return "the tower was restarted: not all ranks were reported again yet"
        return ""

    def _find_losses(self, nodes: Mapping[str, NodeReport], now: float) -> dict[int, Loss]:
        """Return the ranks lost since `settle_s` seconds before the incident opened."""
        judgement, attempt = self.judged, self.attempt
        opening = judgement.watch.opening
        if opening is None or judgement.watch.status is not Status.HUNG:
            return {}
        stored = {r: loss for r, loss in judgement.stored_losses.items() if r not in attempt.ranks}
        since = opening.at - self.detector.policy.settle_s
        return stored | find_losses(attempt, nodes, self.detector, since, now)

    def _find_context(
        self, nodes: Mapping[str, NodeReport], condition: Condition, now: float
    ) -> StallContext:
        attempt, watch = self.attempt, self.judged.watch
        if condition.stall is None:
            return StallContext(typical_s=attempt.pace("").typical_s)
        stall = watch.prolong(condition.stall)
        return stall_context_of(
            attempt, nodes, self.detector, stall, watch.diagnosis, now, watch.samples
        )

    def _begin_sample(self, nodes: Mapping[str, NodeReport], now: float) -> Iterator[Effect]:
        """Order a sample of every rank of a job without heartbeats if one is due."""
        attempt, samples, policy = self.attempt, self.judged.watch.samples, self.detector.policy
        if not wants_sample(attempt, samples, policy, now):
            return
        reporting = self.detector.find_reporting(attempt.live(), nodes, now)
        ranks = {record.vitals.rank for record in reporting}
        samples.begin(ranks, policy.no_heartbeat_sample_s, now)
        yield DumpsWanted(reason="sample", again=True, sample=True)

    def _order_reads(self, now: float, wall: float) -> Iterator[Effect]:
        """Order series of ranks of the incident, those that are due."""
        judgement, attempt = self.judged, self.attempt
        incident, tracing = judgement.incident, judgement.tracing
        if incident is None:
            return
        if incident.closed_at is not None and wall - incident.closed_at > LATE_S:
            return
        suspects = choose_suspects(incident.verdict)
        if (incident.id, suspects) != (tracing.incident, tracing.suspects):
            tracing.begin(incident.id, suspects, attempt)
        if tracing.is_due(now):
            yield SeriesWanted(
                incident=incident.id,
                suspects=tracing.suspects,
                ranks=tracing.take_due(attempt, now),
            )

    def use_dumps(
        self, taken: Sequence[RankDump], stacks: Iterable[Stack], taken_at: float, now: float
    ) -> bool:
        """Use dumps that its ranks have taken. Return whether the job should be checked soon."""
        judgement = self.judgement
        if not taken or judgement is None:
            return False
        judgement.watch.take_dumps(taken, stacks, taken_at)
        judgement.missing_dumps -= len(taken)
        return judgement.watch.may_use_dumps(
            judgement.context.dumps_want, judgement.missing_dumps, now
        )

    def take_sample(self, batch: DumpBatch, taken_at: float) -> None:
        """Add the dumps of a sample, which only show the position of each rank."""
        if self.judgement is not None and self.is_begun:
            dumps = self.attempt.own(batch)
            self.judgement.watch.samples.take(dumps, batch.stacks, taken_at)

    def find_tracing(self, batch: SeriesBatch) -> Tracing | None:
        """Return the orders that these series answer; None if they are not wanted."""
        if self.judgement is None or self.judgement.tracing.incident != batch.incident:
            return None
        keys = [(one.rank, one.pid, one.start_time) for one in batch.series]
        keys += [(one.rank, one.pid, one.start_time) for one in batch.outputs]
        ranks = self.attempt.ranks
        is_own = all(r in ranks and ranks[r].key == (batch.node, *process) for r, *process in keys)
        return self.judgement.tracing if keys and is_own else None

    def take_ack(self, incident_id: str, ack: Ack) -> Incident | None:
        """Add an acknowledgement. Return its incident; None if it is not the one of this job."""
        judgement = self.judgement
        if judgement is None or judgement.incident is None or judgement.incident.id != incident_id:
            return None
        judgement.incident = replace(judgement.incident, ack=ack)
        return judgement.incident

    def note_steps(self, now: float) -> bool:
        """Add a point to the step history if one is due. Return whether it was."""
        status = self.judged.watch.status
        if status is Status.ENDED or not self.steps.is_due(now):
            return False
        attempt = self.attempt
        self.steps.note(attempt.step(), status, find_phase(attempt.live()), now)
        return True

    def count_lost_s(self, now: float) -> float:
        """Add the time since the last call to the totals. Return the rank-seconds newly lost."""
        attempt, watch = self.attempt, self.judged.watch
        since = watch.stall.since if watch.stall else None
        lost_s = self.totals.advance(attempt.number, attempt.step(), watch.status, since, now)
        return lost_s * attempt.world_size if lost_s else 0.0

    def is_over(self, now: float, *, crowded: bool) -> bool:
        """Return whether the job ended, or was last reported, so long ago that it is dropped.

        `crowded`: there is little space for new jobs.
        """
        judgement = self.judged
        return any(
            at is not None and now - at > (FORGET_CROWDED_AFTER_S if crowded else after_s)
            for at, after_s in (
                (judgement.ended_at, FORGET_AFTER_S),
                (judgement.lost_at, FORGET_LOST_AFTER_S),
            )
        )

    def find_undumped(self, wanted: DumpsWanted, now: float) -> list[RankRecord]:
        """Return the live ranks of which dumps are wanted."""
        stall = self.judged.watch.stall
        since = stall.since if stall else now
        live = self.attempt.live()
        return [r for r in live if wanted.again or not is_dumped_since(r, since)]

    @property
    def shared_cause(self) -> SharedCause | None:
        """The cause by which an incident that opens now joins an outage.

        The end of a job and a drill are in no outage: a job that is over needs no repair, and no
        person is notified of a drill.
        """
        watch = self.judged.watch
        if watch.diagnosis is None or watch.status is Status.ENDED or is_drill(self.name):
            return None
        return watch.diagnosis.shared_cause

    def facts(self) -> JobFacts:
        """Return what is known of the job now, for its incident."""
        labels, attempt, context = self.labels, self.attempt, self.judged.context
        return JobFacts(
            ranks=attempt.world_size,
            nodes=len({record.key.node for record in attempt.ranks.values()}),
            scheduler=labels.scheduler if labels else "",
            scheduler_id=labels.scheduler_id if labels else "",
            name=labels.name if labels else "",
            user=labels.user if labels else "",
            partition=labels.partition if labels else "",
            namespace=labels.namespace if labels else "",
            dumps_in=context.dumps_have,
            dumps_wanted=context.dumps_want,
            checkpoint_step=attempt.checkpoint_step,
            step_s=attempt.pace("").typical_s or None,
            founder=self.founder,
        )
