"""Raises suspicions, and opens, updates and closes incidents.

`NEXT` is the table of all statuses. It maps a job's status and the kind of its condition to its
next status. A job has at most one open incident. If a job recovered, its next stall is a new
incident.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from watchtower.diagnosis.causes import entry_of
from watchtower.diagnosis.diagnosed import Diagnosis, not_diagnosed
from watchtower.jobs.aftermath import Loss, Opening, may_replace_verdict
from watchtower.jobs.condition import Condition, ConditionKind, Stall, Why
from watchtower.jobs.dump_timing import DiagnosisTiming, EarlyChecks, RepeatedDumps
from watchtower.jobs.effects import (
    DiagnosisWanted,
    DumpsWanted,
    Effect,
    IncidentClosed,
    IncidentOpened,
    IncidentUpdated,
    PauseLearned,
    StatusChanged,
)
from watchtower.jobs.pace import Pause, Pauses
from watchtower.jobs.samples import Samples
from watchtower.jobs.stall_context import StallContext
from watchtower.jobs.stillness import Patience, WorkTime, cannot_go_on, patience_for
from watchtower.jobs.wait_counts import WaitCounts
from watchtower.policy import Policy
from watchtower.wire.dumps import RankDump
from watchtower.wire.stacks import Stack
from watchtower.wire.verdict import Status

_QUIET = {
    ConditionKind.STEPPING: Status.HEALTHY,
    ConditionKind.STARTING: Status.HEALTHY,
    ConditionKind.UNWATCHED: Status.HEALTHY,
    ConditionKind.CHANGING: Status.HEALTHY,
    ConditionKind.IDLE: Status.HEALTHY,
    ConditionKind.STEPLESS: Status.SUSPECT,
    ConditionKind.BLIND: Status.MONITORING_LOST,
    ConditionKind.SLOW: Status.SLOW,
    ConditionKind.STALLED: Status.SUSPECT,
    ConditionKind.SUSPENDED: Status.SUSPENDED,
    ConditionKind.ENDING: Status.HEALTHY,
    ConditionKind.ENDED: Status.ENDED,
    ConditionKind.LOST: Status.MONITORING_LOST,
}

NEXT: dict[Status, dict[ConditionKind, Status]] = {
    Status.HEALTHY: _QUIET,
    Status.SLOW: _QUIET,
    Status.SUSPENDED: _QUIET,
    Status.MONITORING_LOST: _QUIET,
    # A stall becomes HUNG when its patience is over, not because of its kind: see
    # `AttemptWatch.advance`. While a job starts, ranks that connect to their peers may move in
    # turn, so that only steps end the suspicion.
    Status.SUSPECT: _QUIET
    | {ConditionKind.ENDING: Status.SUSPECT, ConditionKind.STARTING: Status.SUSPECT},
    # Only steps, changes in samples, or the end of the job close an open incident.
    Status.HUNG: {
        ConditionKind.STEPPING: Status.RECOVERED,
        ConditionKind.CHANGING: Status.RECOVERED,
        ConditionKind.SLOW: Status.RECOVERED,
        ConditionKind.STARTING: Status.HUNG,
        ConditionKind.UNWATCHED: Status.HUNG,
        ConditionKind.IDLE: Status.HUNG,
        ConditionKind.STEPLESS: Status.HUNG,
        ConditionKind.BLIND: Status.HUNG,
        ConditionKind.STALLED: Status.HUNG,
        ConditionKind.SUSPENDED: Status.HUNG,
        ConditionKind.ENDING: Status.HUNG,
        ConditionKind.ENDED: Status.ENDED,
        ConditionKind.LOST: Status.HUNG,
    },
    Status.RECOVERED: _QUIET
    | {
        ConditionKind.STEPPING: Status.RECOVERED,
        ConditionKind.CHANGING: Status.RECOVERED,
        ConditionKind.STARTING: Status.RECOVERED,
        ConditionKind.UNWATCHED: Status.RECOVERED,
        ConditionKind.IDLE: Status.RECOVERED,
        ConditionKind.ENDING: Status.RECOVERED,
    },
    # An agent that reports again may report ranks that counted as ended.
    Status.ENDED: _QUIET | {ConditionKind.ENDING: Status.ENDED},
}

STALLED = (Status.SUSPECT, Status.HUNG, Status.ENDED)
"""Statuses in which a job has a stall, or had one when it ended."""

CALM = (Status.HEALTHY, Status.RECOVERED)
"""Statuses in which a stall is checked before it makes the job suspect."""

DIAGNOSIS_WAIT_S = 30.0
"""Seconds to wait for the diagnosis of a suspicion. After that the suspicion is judged without."""


@dataclass(slots=True)
class AttemptWatch:
    """The status of one attempt of one job.

    The tower calls `advance` every tick, and after every dump.
    """

    policy: Policy
    pauses: Pauses
    status: Status = Status.HEALTHY
    reason: str = "just found"
    stall: Stall | None = None
    """The current stall, or the one during which the job ended."""
    checked_since: float = 0.0
    """Since when the ranks are dumped and diagnosed because of this stall."""
    suspect_since: float = math.inf
    """Since when the job is suspect because of this stall. Infinity before that."""
    diagnosis: Diagnosis | None = None
    """The diagnosis of the current stall, or of the end of the job."""
    patience: Patience | None = None
    """How long the current suspicion may last; None until there is a diagnosis."""
    wait_counts: WaitCounts | None = None
    """None unless the job is slow."""
    samples: Samples = field(default_factory=Samples)
    """Stack samples; empty if the job has heartbeats."""
    kind: ConditionKind | None = None
    """The kind of the latest condition."""
    opening: Opening | None = None
    """The opening of the open incident, or of the latest incident of this stall."""
    losses: Mapping[int, Loss] = field(default_factory=dict)
    """Ranks lost since the incident opened."""
    recovered_at: float | None = None
    """When the incident ended because the job made steps; None unless the status is RECOVERED."""
    _candidate: Diagnosis | None = None
    """A diagnosis made after a rank was lost. It is judged when the losses are complete."""
    _suspicion_reason: str = ""
    """Reason of the suspicion during which the agents stopped reporting."""
    _work: WorkTime = field(default_factory=WorkTime)
    _timing: DiagnosisTiming = field(default_factory=lambda: DiagnosisTiming(0.0))
    _repeated: RepeatedDumps = field(default_factory=RepeatedDumps)
    _context: StallContext = field(default_factory=StallContext)
    """That of the latest check of the stall."""
    _checks: EarlyChecks = field(default_factory=EarlyChecks)
    _is_resumed: bool = False

    def advance(self, condition: Condition, context: StallContext, now: float) -> list[Effect]:
        """Update the status for one condition. The caller must perform the effects in order."""
        status, self.kind = NEXT[self.status][condition.kind], condition.kind
        effects: list[Effect] = []
        self._end_check(condition, now)
        if condition.stall is not None and self._may_follow(condition.kind, status, now):
            effects += self._follow_stall(condition.stall, context, now)
            status = self._weigh_stall(condition.kind, status, context, effects, now)
        elif status is Status.RECOVERED and condition.kind in (
            ConditionKind.STEPPING,
            ConditionKind.CHANGING,
        ):
            status = self._weigh_recovery(context, now)
        elif condition.kind is ConditionKind.STEPLESS and self.status is Status.SUSPECT:
            effects += self._learn_pause(now)  # the stall is over, although no step was seen
            self.stall = self.diagnosis = self.patience = None
        reason = condition.reason
        if status is Status.MONITORING_LOST:
            reason = self._explain_lost(reason)
        if status is not self.status:
            effects += self._change(status, reason, now)
            if condition.is_end_unseen:  # it may have finished: no rank is named
                effects = [effect for effect in effects if effect != DiagnosisWanted()]
        if self.wait_counts is not None:
            effects += self.wait_counts.tick(now)
        self.reason = reason
        return effects

    @property
    def shown(self) -> Diagnosis | None:
        """The diagnosis as people are shown it: None while the job is suspect and the rank works,
        or has moved for a short time only."""
        is_doubtful = self.status in (Status.SUSPECT, Status.MONITORING_LOST)
        if is_doubtful and self.patience and self._context.stalled_s < self.patience.named_s:
            return None
        return self.diagnosis

    @property
    def is_checking(self) -> bool:
        """Whether a stall is checked that has not made the job suspect."""
        return self.stall is not None and self.status in CALM

    @property
    def is_following(self) -> bool:
        """Whether a stall is followed: it is checked, suspect or hung."""
        return self.stall is not None and self.status in (*CALM, Status.SUSPECT, Status.HUNG)

    def _may_follow(self, kind: ConditionKind, status: Status, now: float) -> bool:
        """Return whether a stall is followed. One that does not make the job suspect by its length
        is checked only now and then."""
        if kind is ConditionKind.STALLED or self.is_following or status is Status.SUSPECT:
            return True
        return self.status in CALM and status in CALM and self._checks.may_begin(now)

    def _end_check(self, condition: Condition, now: float) -> None:
        """End a check that found nothing: the stall is over, or no evidence makes it a suspicion.

        Later dumps may show more. In a marked phase, a rank that hangs may use CPU all the time.
        """
        stall, patience = condition.stall, self.patience
        is_vain = (
            stall is not None
            and stall.why is Why.OVERDUE
            and condition.kind is not ConditionKind.STALLED
            and patience is not None
            and math.isinf(patience.suspect_s)
            and now - self.checked_since >= self.policy.early_check_s
        )
        if (stall is None or is_vain) and self.is_checking:
            self.stall = self.diagnosis = self.patience = None
            self._checks.end(now)

    def _follow_stall(self, stall: Stall, context: StallContext, now: float) -> list[Effect]:
        effects = [] if self.is_following else self._begin_check(now)
        self.stall, self._context = self.prolong(stall), context
        if self._is_resumed:
            self._is_resumed = False
            effects.append(DumpsWanted(reason="resumed"))
        return [*effects, *self._ask_for_diagnosis(context, now)]

    def _explain_lost(self, reason: str) -> str:
        """Return the reason for lost monitoring, with the reason of a suspicion before it."""
        if self.status is Status.SUSPECT:
            self._suspicion_reason = self.reason
        return (
            f"{reason}; it was suspect: {self._suspicion_reason}"
            if self._suspicion_reason
            else reason
        )

    def take_dumps(
        self, dumps: Iterable[RankDump], stacks: Iterable[Stack], taken_at: float
    ) -> None:
        """Add new dumps of this attempt to the samples and wait counts."""
        dumps, stacks = list(dumps), list(stacks)
        if self.samples.has_begun:
            self.samples.take(dumps, stacks, taken_at)
        if self.wait_counts is not None:
            self.wait_counts.take(dumps, stacks)

    def may_use_dumps(self, want: int, missing: int, now: float) -> bool:
        """Return whether new dumps may have a consequence now, so that the job should be checked.

        `missing` of the `want` ranks that can be dumped were not dumped yet, or fewer. Every tick
        checks the job, too.
        """
        if self.stall is None or not self.is_following:
            return True
        is_death = self.stall.why is Why.DEATH
        return self._timing.may_be_due(want, missing, is_death=is_death, now=now)

    def prolong(self, stall: Stall) -> Stall:
        """Return the stall with the beginning of the current one, if that was earlier.

        A stall remains the same one if another reason is added. Its dumps are still evidence.
        """
        if self.stall is None:
            return stall
        return replace(stall, since=min(stall.since, self.stall.since))

    def take_diagnosis(self, diagnosis: Diagnosis, now: float) -> list[Effect]:
        """Use the requested diagnosis, unless the stall is over by now. Returns the effects."""
        if self.status is Status.ENDED:
            if self.diagnosis is not None or not is_reported_at_the_end(diagnosis):
                return []
            self.diagnosis = diagnosis
            return [IncidentOpened()]
        if self.status is Status.HUNG and self.losses:
            self._candidate = diagnosis
            return []
        if self.status is not Status.SLOW and not self.is_following:
            return []
        self._adopt(diagnosis)
        if self.wait_counts is not None and diagnosis.suspects:
            self.wait_counts.settle(now)
        return [IncidentUpdated()] if self.status is Status.HUNG else []

    def take_losses(
        self, losses: Mapping[int, Loss], ranks: int, is_over: bool, now: float
    ) -> list[Effect]:
        """Record the ranks lost since the incident opened (see `aftermath`). Returns the effects.

        `ranks` is the number of the job's ranks. Programs that handle SIGTERM end seconds apart.
        Therefore a diagnosis made after the first loss waits until no rank was lost for a while, or
        no rank is left (`is_over`).
        """
        if self.status is not Status.HUNG or self.opening is None:
            return []
        has_changed = {r: loss.text for r, loss in losses.items()} != {
            r: loss.text for r, loss in self.losses.items()
        }
        self.losses = losses
        last_at = max((loss.at for loss in losses.values()), default=-math.inf)
        candidate = self._candidate
        has_settled = is_over or now - last_at >= self.policy.aftermath_settle_s
        if candidate is not None and has_settled:
            self._candidate = None
            if may_replace_verdict(self.opening, candidate, losses, ranks):
                self._adopt(candidate)
                has_changed = True
        return [IncidentUpdated()] if has_changed else []

    def _adopt(self, diagnosis: Diagnosis) -> None:
        self.diagnosis = diagnosis
        if self.is_following:
            self._be_patient(diagnosis)
        if self.status is Status.HUNG and self.opening is not None:
            self.opening = _open(diagnosis, self.opening.at)

    def resume(self, stall: Stall, opening: Opening, now: float) -> None:
        """Continue an incident that was open when the tower stopped."""
        self.status, self.reason = (
            Status.HUNG,
            "its incident was already open when the tower started",
        )
        self.stall, self.checked_since, self.suspect_since = stall, now, now
        self._is_resumed = True
        self.opening, self._timing = opening, DiagnosisTiming(now)

    def recover(self, now: float) -> list[Effect]:
        """End the open incident: the ranks made steps that were not reported then.

        A stall of now is another one. Returns the effects.
        """
        self._is_resumed = False
        return self._change(Status.RECOVERED, "its ranks made steps, unseen by a tower", now)

    def hung_in_s(self, now: float) -> float | None:
        """Return the seconds until a suspicion becomes an incident; None without a suspicion."""
        is_counting = self.status is Status.SUSPECT and math.isfinite(self.suspect_since)
        if self.patience is None or not is_counting:
            return None
        return max(0.0, self.patience.hung_s - (now - self.suspect_since))

    def end(self, reason: str) -> list[Effect]:
        """End this attempt because the next one began. Returns the effects."""
        before, self.status, self.reason = self.status, Status.ENDED, reason
        self.wait_counts = None
        return [IncidentClosed()] if before is Status.HUNG else []

    def _begin_check(self, now: float) -> list[Effect]:
        self.checked_since, self.suspect_since = now, math.inf
        self.diagnosis = self.patience = None
        self.opening, self.losses, self._candidate = None, {}, None
        self._work, self._context = WorkTime(), StallContext()
        self._timing = DiagnosisTiming(now)
        self._repeated = RepeatedDumps()
        return [DumpsWanted(reason="suspect")]

    def _ask_for_diagnosis(self, context: StallContext, now: float) -> list[Effect]:
        is_death = self.stall is not None and self.stall.why is Why.DEATH
        is_due = self._timing.is_due(
            context, is_death=is_death, is_diagnosed=self.diagnosis is not None, now=now
        )
        return [DiagnosisWanted()] if is_due else []

    def _weigh_stall(
        self,
        kind: ConditionKind,
        status: Status,
        context: StallContext,
        effects: list[Effect],
        now: float,
    ) -> Status:
        """Return whether the stall makes the job suspect or hung: by its length, or by evidence."""
        if self.status is Status.HUNG:
            return Status.HUNG
        is_late = kind is ConditionKind.STALLED
        if is_late:
            self._suspect(now)
        if self.diagnosis is None:
            if not is_late or now - self.suspect_since < DIAGNOSIS_WAIT_S:
                return Status.SUSPECT if is_late else status
            self.diagnosis = not_diagnosed(
                context.stalled_s, f"no result within {DIAGNOSIS_WAIT_S:g} s"
            )
        self._work.take(context.phase, self.diagnosis, now)
        patience = self._be_patient(self.diagnosis)
        moves = self.diagnosis.suspects_moving
        if (context.stalled_s if moves else context.still_s) >= patience.suspect_s:
            self._suspect(now)
        is_suspect = math.isfinite(self.suspect_since)
        waited = now - (self.suspect_since if is_suspect else self.checked_since)
        limit_s = patience.hung_s if is_suspect else patience.suspect_s
        effects += self._repeated.take_due(self.diagnosis, context.dumps_want, waited, limit_s)
        if not is_suspect:
            return status
        return Status.HUNG if waited >= limit_s else Status.SUSPECT

    def _be_patient(self, diagnosis: Diagnosis) -> Patience:
        worked_s = max(0.0, self._work.until - self.suspect_since)
        before = self.patience
        patience = patience_for(diagnosis, self._context, self.pauses, self.policy, worked_s)
        if before is not None and before.is_work and not patience.is_work:
            self._repeated = RepeatedDumps()  # one more pair of dumps shows whether it still works
        self.patience = patience
        return patience

    def _suspect(self, now: float) -> None:
        if math.isinf(self.suspect_since):
            self.suspect_since = now
            self._repeated = RepeatedDumps()

    def _weigh_recovery(self, context: StallContext, now: float) -> Status:
        """Return HEALTHY if the job has recovered for as long as a rank may need for a step."""
        policy = self.policy
        long_s = max(policy.suspect_floor_s, policy.suspect_factor * context.typical_s)
        is_over = self.recovered_at is not None and now - self.recovered_at >= long_s
        return Status.HEALTHY if is_over else Status.RECOVERED

    def _change(self, status: Status, reason: str, now: float) -> list[Effect]:
        before, self.status = self.status, status
        effects: list[Effect] = [StatusChanged(before=before, after=status, reason=reason)]
        self.recovered_at = now if status is Status.RECOVERED else None
        if status is Status.HUNG:
            assert self.diagnosis is not None, "patience has run out with a diagnosis"
            self.opening = _open(self.diagnosis, now)
            effects.append(IncidentOpened())
        elif before is Status.HUNG:
            # No pause is learned, so that the next stall of this length is an incident, too.
            effects.append(IncidentClosed())
        elif status is Status.ENDED:
            self.diagnosis = None  # it is made again, because the deaths are new evidence
            effects.append(DiagnosisWanted())
        elif before is Status.SUSPECT and status in (Status.HEALTHY, Status.SLOW):
            effects += self._learn_pause(now)
        if (before, status) != (Status.SUSPECT, Status.MONITORING_LOST):
            self._suspicion_reason = ""
            self.stall = self.stall if status in STALLED else None
        self.wait_counts = WaitCounts(since=now) if status is Status.SLOW else None
        if self.wait_counts is not None:
            self.diagnosis = None  # it was about the suspicion, not about the slow steps
        return effects

    def _learn_pause(self, now: float) -> list[Effect]:
        """Record a suspicion that ended because of steps as a pause, which extends the patience."""
        if self.diagnosis is None or self.stall is None or cannot_go_on(self.diagnosis):
            return []
        if self.stall.why is Why.STARTUP:
            return []  # the length of a start is unrelated to the length of steps
        pause = Pause(
            phase=self._work.name,
            frame_class=self.diagnosis.suspect_class,
            length_s=now - self.stall.since,
        )
        return [PauseLearned(pause=pause)] if self.pauses.learn(pause) else []


def _open(diagnosis: Diagnosis, at: float) -> Opening:
    ranks = frozenset(suspect.rank for suspect in diagnosis.suspects)
    return Opening(at=at, cause=diagnosis.cause, ranks=ranks)


def is_reported_at_the_end(diagnosis: Diagnosis) -> bool:
    """Return whether to report the cause of a job's end: ranks died and ended the job, or what they
    wrote shows for which rank they waited until they gave up.

    It is reported also if no rank is to blame, because all of them ended in the same way.
    """
    return entry_of(diagnosis.cause).ends_job or diagnosis.has_given_up
