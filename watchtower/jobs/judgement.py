"""An attempt of a job as it is judged: its status, its diagnoses and its incident."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from watchtower.diagnosis.diagnosed import Diagnosis
from watchtower.incidents.incident import NO_FACTS, NO_SHADOW, Incident, JobFacts, ShadowMode
from watchtower.jobs.aftermath import Loss, Opening, group_losses
from watchtower.jobs.agents import NodeReport
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.case_inputs import CaseInputs, collect_case_inputs
from watchtower.jobs.condition import ConditionKind, Stall, Why
from watchtower.jobs.detector import Detector
from watchtower.jobs.effects import Effect
from watchtower.jobs.incidents import AttemptWatch
from watchtower.jobs.stall_context import StallContext
from watchtower.jobs.tracing import Tracing, choose_suspects
from watchtower.jobs.verdicts import (
    DiagnosisHistory,
    DiagnosisResult,
    Question,
    add_aftermath,
    close,
    date_timeout,
    diagnosed_verdict,
    find_only_node,
    identify,
    plain_verdict,
    read_aftermath,
)
from watchtower.wire.verdict import Aftermath, Cause, Status, Verdict
from watchtower.writing.times import rfc3339

CLEAR = (Status.HEALTHY, Status.RECOVERED, Status.SUSPENDED)
"""Statuses in which no incident opens. The next incident needs a new diagnosis."""


@dataclass(slots=True)
class Judgement:
    """What is decided about one attempt of one job, and why."""

    name: str
    attempt: Attempt
    """Its ranks."""
    watch: AttemptWatch
    shadow_mode: ShadowMode = NO_SHADOW
    context: StallContext = StallContext()
    missing_dumps: int = 0
    """Ranks without a dump of this stall when it was last checked, minus the dumps since then."""
    incident: Incident | None = None
    """The open incident, else the latest one of this attempt."""
    diagnoses: DiagnosisHistory = field(default_factory=DiagnosisHistory)
    stored_losses: Mapping[int, Loss] = field(default_factory=dict)
    """Losses that the tower's last run listed in the open incident."""
    resumed_at: float | None = None
    """Time at which the tower resumed that incident; None after a later step."""
    stepped_at: float | None = None
    """Time at which an accused rank first stepped although the incident is open."""
    tracing: Tracing = field(default_factory=Tracing)
    """Which series of the incident were ordered."""
    is_recalling: bool = False
    """Dumps are being read back from the store."""
    is_diagnosing: bool = False
    """Whether a diagnosis waits, runs, or has just run (see `effects.REST`)."""
    is_asked_again: bool = False
    """New evidence arrived during a diagnosis."""
    ended_at: float | None = None
    lost_at: float | None = None
    """Time since which no agent reports this job."""
    remembered: tuple[int, bool, str, int, int] | None = None
    """Values of this attempt that were stored last: number of ranks, whether the step time is
    known, owner, day, number of recoveries of the store."""
    remembered_step_s: float = 0.0
    """The typical step in seconds that was stored with them."""
    remembered_at: float = float("-inf")

    @property
    def current_incident(self) -> Incident | None:
        """The open incident, or the one that the job ended in or has just recovered from."""
        incident, status = self.incident, self.watch.status
        if incident is None or incident.closed_at is None:
            return incident
        is_current = status in (Status.RECOVERED, Status.ENDED) and status is incident.status
        return incident if is_current else None

    @property
    def slow_node(self) -> str:
        """The node of all ranks that slow down the job; empty if there is not exactly one."""
        diagnosis = self.watch.diagnosis
        if diagnosis is None or self.watch.status is not Status.SLOW:
            return ""
        return find_only_node(diagnosis.suspects)

    def resume(self, incident: Incident, now: float, wall: float) -> None:
        """Continue with the incident that the tower's last run stored for this attempt."""
        self.incident = replace(
            incident,
            evidence=None,  # the store has it
            facts=date_timeout(incident.facts, incident.verdict, incident.updated_at),
        )
        self.tracing.resume(incident.id, choose_suspects(incident.verdict))
        if incident.closed_at is not None:
            self.watch.status = Status.ENDED  # the verdict on its end was already published
            return
        away_s = max(0.0, wall - incident.updated_at)
        since = now - away_s - incident.verdict.stalled_for_s
        verdict = incident.verdict
        opening = Opening(
            at=now - max(0.0, wall - incident.opened_at),
            cause=verdict.cause or Cause.UNKNOWN,
            ranks=frozenset(suspect.rank for suspect in verdict.suspects),
        )
        self.watch.resume(Stall(why=Why.OVERDUE, since=since, ranks=frozenset()), opening, now)
        self.diagnoses.resume(incident, self.question())
        self.stored_losses = read_aftermath(verdict.aftermath, now - wall)
        self.resumed_at = now

    def has_gone_on(self) -> bool:
        """Return whether ranks stepped after the tower resumed an incident; True without one.

        The deadline of a phase may be lost with the last run. So the absence of late ranks does not
        show that the ranks step.
        """
        if self.resumed_at is not None and self.attempt.has_stepped_since(self.resumed_at):
            self.resumed_at = None
        return self.resumed_at is None

    def has_recovered_unseen(self) -> bool:
        """Return whether every rank stepped after the open incident began.

        No step need be seen for that: the tower was away, or the nodes were cut off from it.
        """
        opening = self.watch.opening
        if self.watch.status is not Status.HUNG or opening is None:
            return False
        return self.attempt.has_stepped_since(opening.at)

    def question(self) -> Question:
        """Return the subject of a diagnosis that starts now: this suspicion, slowness or end."""
        wait_counts = self.watch.wait_counts
        slow_since = wait_counts.since if wait_counts else 0.0
        return self.watch.checked_since, slow_since, self.watch.status is Status.ENDED

    def collect_case(
        self, nodes: Mapping[str, NodeReport], detector: Detector, now: float
    ) -> CaseInputs:
        """Copy all evidence about this attempt, for a diagnosis."""
        stall, wait_counts = self.watch.stall, self.watch.wait_counts
        return collect_case_inputs(self.attempt, nodes, detector, stall, wait_counts, now)

    def note_condition(self, kind: ConditionKind, now: float) -> None:
        """Note the time since which the job has ended or is not reported. Drop unused diagnoses."""
        if self.watch.status in CLEAR and not self.watch.is_checking:
            self.diagnoses.drop_unused()
        self.ended_at = (self.ended_at or now) if kind is ConditionKind.ENDED else None
        self.lost_at = (self.lost_at or now) if kind is ConditionKind.LOST else None

    def may_be_over(self, now: float) -> bool:
        """Return whether an accused rank has just stepped again: the job may have recovered.

        The reports of the other ranks may not have arrived. A diagnosis now would mix evidence of
        the hang with evidence after it, and would be the last one of the incident. If the accused
        rank steps for longer, the verdict accuses the wrong rank and a new diagnosis is necessary.
        """
        stall, policy = self.watch.stall, self.watch.policy
        if self.incident is None or stall is None or self.watch.status is not Status.HUNG:
            return False
        accused = [
            self.attempt.ranks.get(suspect.rank) for suspect in self.incident.verdict.suspects
        ]
        since = stall.since + policy.suspect_floor_s
        if not any(
            r and r.vitals.beat and r.seen_at - r.vitals.beat.age_s > since for r in accused
        ):
            self.stepped_at = None
            return False
        self.stepped_at = self.stepped_at or now
        return now - self.stepped_at < policy.settle_s

    def verdict(self, step: int | None, now: float) -> Verdict:
        """Return the current verdict of this job."""
        watch, incident = self.watch, self.current_incident
        if incident is not None:
            is_open = incident.closed_at is None
            return self._with_stall_age(incident.verdict, now) if is_open else incident.verdict
        shown = watch.shown
        if watch.status in (Status.SUSPECT, Status.SLOW) and shown is not None:
            return self._with_patience(self._diagnosed(watch.status, shown, now), now)
        if watch.status is Status.MONITORING_LOST and watch.stall and shown:
            verdict = self._diagnosed(watch.status, shown, now)
            return replace(verdict, missing_evidence=(watch.reason, *verdict.missing_evidence))
        verdict = plain_verdict(self.name, self.attempt.number, watch.status, watch.reason, step)
        return self._with_patience(verdict, now)

    def take_diagnosis(self, result: DiagnosisResult, now: float, wall: float) -> list[Effect]:
        """Pass a diagnosis to the detection. Its case and time are stored if it is accepted."""
        effects = self.watch.take_diagnosis(result.diagnosis, now)
        self.diagnoses.take(result, wall)
        self.diagnoses.adopt(self.watch.diagnosis, self.question())
        return effects

    def take_losses(self, losses: Mapping[int, Loss], now: float) -> list[Effect]:
        """Pass the ranks that were lost since the incident opened to the detection."""
        is_over = all(record.vitals.rank in losses for record in self.attempt.live())
        effects = self.watch.take_losses(losses, len(self.attempt.ranks), is_over, now)
        self.diagnoses.adopt(self.watch.diagnosis, self.question())
        return effects

    def _diagnosed(self, status: Status, diagnosis: Diagnosis, now: float) -> Verdict:
        verdict = diagnosed_verdict(
            self.name, self.attempt.number, status, diagnosis, self.diagnoses.diagnosed_at
        )
        return self._with_stall_age(verdict, now)

    def _with_patience(self, verdict: Verdict, now: float) -> Verdict:
        patience, hung_in_s = self.watch.patience, self.watch.hung_in_s(now)
        if patience is None or hung_in_s is None:
            return verdict
        return replace(verdict, hung_in_s=round(hung_in_s, 1), hung_because=patience.reason)

    def _with_stall_age(self, verdict: Verdict, now: float) -> Verdict:
        stall = self.watch.stall
        if stall is None:
            return verdict
        return replace(verdict, stalled_for_s=round(max(0.0, now - stall.since), 1))

    def open_incident(
        self, ident: str, outage: str, sharer: str, facts: JobFacts, now: float, wall: float
    ) -> Incident:
        """Open an incident with the current diagnosis. `sharer`: whose share of the store it
        uses."""
        diagnosis = self.watch.diagnosis
        assert diagnosis is not None, "an incident opens with a diagnosis"
        status = self.watch.status
        verdict = self._diagnosed(status, diagnosis, now)
        identity = replace(identify(status, verdict, facts.user), outage=outage)
        if status is Status.HUNG:
            identity = replace(identity, suspect_at=wall - (now - self.watch.suspect_since))
        incident = Incident(
            id=ident,
            job=self.name,
            generation=self.attempt.number,
            status=status,
            opened_at=wall,
            updated_at=wall,
            closed_at=wall if status is Status.ENDED else None,
            verdict=replace(verdict, incident=ident, opened_at=rfc3339(wall)),
            identity=identity,
            only_node=find_only_node(verdict.suspects),
            shadow=self.shadow_mode.covers(verdict.cause),
            verdicts=self.diagnoses.verdicts,
            evidence=self.diagnoses.hand_over_evidence(),
            summary=self.diagnoses.summary,
            sharer=sharer,
            facts=date_timeout(facts, verdict, wall),
        )
        self.incident = replace(incident, evidence=None, summary=None)  # the store has them
        return incident

    def update_incident(
        self, now: float, wall: float, facts: JobFacts = NO_FACTS
    ) -> Incident | None:
        """Update the open incident. Its evidence changes only if cause or suspects changed."""
        incident, diagnosis = self.incident, self.watch.diagnosis
        if incident is None:
            return None
        before = verdict = incident.verdict
        if diagnosis is not None:
            verdict = self._diagnosed(self.watch.status, diagnosis, now)
            verdict = replace(
                verdict,
                incident=before.incident,
                opened_at=before.opened_at,
                shared_cause=before.shared_cause,
            )
        verdict = self._with_stall_age(verdict, now)
        is_same = (before.cause, before.suspects) == (verdict.cause, verdict.suspects)
        evidence = self.diagnoses.hand_over_evidence()
        self.incident = replace(
            incident,
            verdict=add_aftermath(verdict, group_losses(self.watch.losses.values()), wall - now),
            verdicts=self.diagnoses.verdicts,
            updated_at=wall,
            only_node=incident.only_node
            if find_only_node(verdict.suspects) == incident.only_node
            else "",
            evidence=None,
            facts=date_timeout(facts.or_before(incident.facts), verdict, wall),
        )
        self.incident = self.shadow_mode.settle(self.incident)
        if is_same or evidence is None:
            return self.incident
        return replace(self.incident, evidence=evidence, summary=self.diagnoses.summary)

    def close_incident(
        self, status: Status, wall: float, facts: JobFacts = NO_FACTS
    ) -> Incident | None:
        """Close the open incident with a status such as recovered or ended. Its verdict stays."""
        incident = self.incident
        if incident is None or incident.closed_at is not None:
            return None
        verdict = incident.verdict
        stalled_for_s = verdict.stalled_for_s + max(0.0, wall - incident.updated_at)
        verdict = replace(verdict, stalled_for_s=round(stalled_for_s, 1))
        facts = facts.or_before(incident.facts)
        self.incident = close(replace(incident, verdict=verdict, facts=facts), status, wall)
        self.diagnoses.drop_earlier()
        return self.incident

    def note_aftermath(self, text: str, wall: float) -> None:
        """Add an event of the whole job to the open incident."""
        if self.incident is None or self.incident.closed_at is not None:
            return
        verdict = self.incident.verdict
        entry = Aftermath(at=rfc3339(wall), ranks="", text=text)
        verdict = replace(verdict, aftermath=(*verdict.aftermath, entry))
        self.incident = replace(self.incident, verdict=verdict)
