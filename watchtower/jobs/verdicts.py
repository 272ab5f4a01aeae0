"""Verdicts: made from diagnoses, kept for a suspicion, and changed as an incident goes on."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

from watchtower.diagnosis.diagnosed import Diagnosis
from watchtower.incidents.incident import Identity, Incident, IncidentKind, JobFacts
from watchtower.incidents.kill_text import find_timeout_at
from watchtower.jobs.aftermath import Loss, LossGroup
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.detector import Detector
from watchtower.jobs.incidents import AttemptWatch
from watchtower.jobs.progress import describe_unjudged
from watchtower.wire.bounds import MAX_NAME
from watchtower.wire.verdict import (
    Aftermath,
    Cause,
    Domain,
    NotJudged,
    Status,
    Suspect,
    Verdict,
    VerdictEntry,
)
from watchtower.writing.cause_names import format_cause
from watchtower.writing.ranksets import format_ranks, name_ranks, parse_ranks
from watchtower.writing.text import capitalise, clean, format_duration, format_percent
from watchtower.writing.times import format_moment, read_time, rfc3339

MAX_VERDICTS = 32
"""Entries in the history of one incident. The first one and the newest ones stay."""

_OF_A_DIAGNOSIS = {each.name for each in fields(Diagnosis)} & {
    each.name for each in fields(Verdict)
}
"""Fields that a verdict copies from its diagnosis: those with the same name."""

_OVER = {
    Status.RECOVERED: "recovered",
    Status.ENDED: "then ended",
    Status.MONITORING_LOST: "was then no longer reported",
}


def diagnosed_verdict(
    job: str, generation: int, status: Status, diagnosis: Diagnosis, diagnosed_at: float
) -> Verdict:
    """Return the verdict of a diagnosis. The caller adds the incident if there is one."""
    values = {name: getattr(diagnosis, name) for name in _OF_A_DIAGNOSIS}
    values["confidence"] = round(diagnosis.confidence, 3)
    values["stalled_for_s"] = round(diagnosis.stalled_for_s, 1)
    return Verdict(
        job=job,
        generation=generation,
        status=status,
        diagnosed_at=rfc3339(diagnosed_at),
        **values,
    )


def plain_verdict(
    job: str, generation: int, status: Status, reason: str, step: int | None
) -> Verdict:
    """Return the verdict of a job without a diagnosis: healthy, or not diagnosed yet."""
    cause = {Status.SUSPECT: Cause.UNKNOWN, Status.SLOW: Cause.JOB_SLOW}.get(status)
    confidence = 0.9 if status is Status.SLOW else 0.0
    name = clean(job)
    summary = f"job {name} is {status.value}: {reason}"
    if status is Status.SLOW:
        summary = f"job {name} is slow: {reason}; its ranks are being sampled"
    if status is Status.SUSPECT:
        summary = f"job {name} is suspect: {reason}"
    return Verdict(
        job=job,
        generation=generation,
        status=status,
        cause=cause,
        confidence=confidence,
        summary=summary,
        step=step,
    )


def find_not_judged(
    attempt: Attempt, watch: AttemptWatch, detector: Detector, now: float, wall: float
) -> NotJudged | None:
    """Return why it is not known whether a job is healthy; None if its status is known.

    `wall`: UNIX seconds at `now`.
    """
    found = describe_unjudged(attempt, watch, detector, now)
    if found is None:
        return None
    until = None if found.until is None else rfc3339(round(found.until + wall - now))
    return NotJudged(text=found.text, missing=found.missing, until=until)


def unjudged_verdict(verdict: Verdict, not_judged: NotJudged | None) -> Verdict:
    """Return the verdict of a job of which it is not known whether it is healthy."""
    if not_judged is None:
        return verdict
    name = shlex.quote(clean(verdict.job, MAX_NAME))
    return replace(
        verdict,
        not_judged=not_judged,
        summary=f"job {clean(verdict.job)} is {not_judged.text}: {'; '.join(not_judged.missing)}",
        next_steps=(f"diagnose it now: `watchtower why {name} --now`",),
    )


def closed_verdict(verdict: Verdict, status: Status, wall: float) -> Verdict:
    """Return the verdict of a closed incident, in the past tense."""
    hung = f"job {clean(verdict.job)} hung for {format_duration(verdict.stalled_for_s)}"
    over = f"{hung} and {_OVER[status]} at {format_moment(rfc3339(wall))}."
    if status is Status.RECOVERED:
        summary = f"{over} {_describe_cause(verdict)}"
        return replace(verdict, status=status, summary=summary, next_steps=())
    summary = verdict.summary
    if verdict.status is Status.HUNG:
        summary = f"{over} Seen while it hung: {summary}"
    return replace(verdict, status=status, summary=summary, next_steps=verdict.lasting_steps)


def add_aftermath(verdict: Verdict, groups: Sequence[LossGroup], to_wall: float) -> Verdict:
    """Return the verdict with the losses since its incident opened.

    If a suspect is lost, the next steps about processes are left out. `to_wall` converts the
    tower's clock to UNIX seconds.
    """
    lost = {rank for group in groups for rank in group.ranks}
    suspects = {suspect.rank for suspect in verdict.suspects}
    is_over = bool(lost & suspects if suspects else lost)
    steps = verdict.lasting_steps if is_over else verdict.next_steps
    return replace(verdict, aftermath=_list_aftermath(groups, to_wall), next_steps=steps)


def _list_aftermath(groups: Iterable[LossGroup], to_wall: float) -> tuple[Aftermath, ...]:
    return tuple(
        Aftermath(at=rfc3339(group.at + to_wall), ranks=format_ranks(group.ranks), text=group.text)
        for group in groups
    )


def read_aftermath(listed: Iterable[Aftermath], to_clock: float) -> dict[int, Loss]:
    """Return the published losses, by rank. Items that this release cannot read are left out.

    `to_clock` converts UNIX seconds to the tower's clock.
    """
    losses: dict[int, Loss] = {}
    for item in listed:
        with contextlib.suppress(ValueError):
            at = read_time(item.at).timestamp() + to_clock
            for rank in parse_ranks(item.ranks):
                losses[rank] = Loss(rank=rank, at=at, kind=None, text=item.text)
    return losses


def add_entry(
    entries: tuple[VerdictEntry, ...], diagnosis: Diagnosis, wall: float
) -> tuple[VerdictEntry, ...]:
    """Add a verdict to a history if it names another cause or other suspects than the last."""
    suspects = format_ranks(suspect.rank for suspect in diagnosis.suspects)
    if entries and (entries[-1].cause, entries[-1].suspects) == (diagnosis.cause, suspects):
        return entries
    entry = VerdictEntry(
        at=rfc3339(wall),
        cause=diagnosis.cause,
        confidence=round(diagnosis.confidence, 3),
        suspects=suspects,
        summary=diagnosis.summary,
    )
    kept = entries if len(entries) < MAX_VERDICTS else (entries[0], *entries[2:])
    return (*kept, entry)


def _describe_cause(verdict: Verdict) -> str:
    """Return "Rank 5 (gpu-042) held it up: the process is stopped (96 %)."."""
    if not verdict.suspects:
        return f"No rank was named: {format_cause(verdict.cause or Cause.UNKNOWN)}."
    first = verdict.suspects[0]
    ranks = name_ranks(suspect.rank for suspect in verdict.suspects)
    place = f" ({clean(first.node, 64)})" if len(verdict.suspects) == 1 else ""
    sure = f"{format_cause(first.cause)} ({format_percent(verdict.confidence)})"
    return f"{capitalise(ranks)}{place} held it up: {sure}."


def identify(status: Status, verdict: Verdict, user: str) -> Identity:
    """Return what never changes of an incident that opens with this verdict."""
    kind, domain = IncidentKind.HUNG, verdict.domain or Domain.UNKNOWN
    if status is Status.ENDED:
        kind = IncidentKind.ENDED
    elif verdict.cause is Cause.NEVER_STARTED:
        kind = IncidentKind.NEVER_STARTED
    return Identity(kind=kind, domain=domain, user=user)


def date_timeout(facts: JobFacts, verdict: Verdict, wall: float) -> JobFacts:
    """Return the facts with the time at which the job's own timeout expires."""
    return replace(facts, timeout_at=find_timeout_at(verdict, wall, facts.timeout_at))


def find_only_node(suspects: Sequence[Suspect]) -> str:
    """Return the node of all suspects; empty if there are none, or on several nodes."""
    nodes = {suspect.node for suspect in suspects}
    return nodes.pop() if len(nodes) == 1 else ""


def close(incident: Incident, status: Status, wall: float) -> Incident:
    """Return the incident, closed."""
    verdict = closed_verdict(incident.verdict, status, wall)
    return replace(incident, status=status, updated_at=wall, closed_at=wall, verdict=verdict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisResult:
    """The result of one diagnosis."""

    diagnosis: Diagnosis
    """If the diagnosis failed, its `why_not` contains the reason."""
    evidence: bytes | None
    """The case of the diagnosis as JSON; None if no case could be made."""
    summary: bytes | None = None
    """The summary of the case (`diagnoser.summaries`); None if there is none."""


@dataclass(slots=True)
class Tries:
    """How the latest diagnoses of a job went."""

    deaths: int = 0
    """Consecutive ones that were ended because they exceeded their limits."""
    again_at: float = 0.0
    """When the next one may begin."""
    is_long: bool = False
    """A brief try is not enough for it."""


Question = tuple[float, float, bool]
"""The subject of a diagnosis: a suspicion, slowness, or the end of a job."""


@dataclass(slots=True)
class DiagnosisHistory:
    """The diagnoses of one attempt in memory. The account of bytes includes their cases."""

    evidence: bytes | None = None
    """Case of the accepted diagnosis, as JSON."""
    summary: bytes | None = None
    """Summary of that case. It stays when the store has both."""
    earlier: bytes | None = None
    """Evidence of an open incident from the tower's last run, as JSON."""
    diagnosed_at: float = 0.0
    verdicts: tuple[VerdictEntry, ...] = ()
    """All verdicts of the current suspicion, or of the incident that it became."""
    _question: Question | None = None
    """The question when that suspicion began."""
    _latest: DiagnosisResult | None = None
    """The latest diagnosis, until it is accepted."""
    _latest_at: float = 0.0

    @property
    def droppable_bytes(self) -> int:
        """Bytes of the cases and summaries in memory."""
        return sum(map(len, {id(case): case for case in self._cases()}.values()))

    def drop(self, excess: int) -> None:
        """Drop the cases and summaries. An incident that opens with this diagnosis then has
        neither."""
        self.evidence = self.summary = self.earlier = None
        if self._latest is not None:
            self._latest = replace(self._latest, evidence=None, summary=None)

    def _cases(self) -> Iterator[bytes]:
        latest = (self._latest.evidence, self._latest.summary) if self._latest else ()
        return filter(None, (self.evidence, self.summary, self.earlier, *latest))

    def resume(self, incident: Incident, question: Question) -> None:
        """Continue with the open incident of the tower's last run."""
        self.evidence = self.earlier = incident.evidence
        self.verdicts, self._question = incident.verdicts, question

    def take(self, result: DiagnosisResult, wall: float) -> None:
        """Store the latest diagnosis. `adopt` checks whether it was accepted."""
        self._latest, self._latest_at = result, wall

    def adopt(self, accepted: Diagnosis | None, question: Question) -> None:
        """If the latest diagnosis was accepted, add its verdict and use its case and time."""
        latest = self._latest
        if latest is None or accepted is not latest.diagnosis:
            return
        if self._question != question:
            self.verdicts, self._question = (), question
        self.evidence, self.summary = latest.evidence, latest.summary
        self.diagnosed_at = self._latest_at
        self.verdicts = add_entry(self.verdicts, latest.diagnosis, self._latest_at)
        self._latest = None

    def drop_unused(self) -> None:
        """Drop the case and the latest diagnosis: the next incident begins with another one."""
        self.evidence = self.summary = self._latest = None

    def drop_earlier(self) -> None:
        """Drop the evidence from the tower's last run, because the incident is over."""
        self.earlier = None

    def hand_over_evidence(self) -> bytes | None:
        """Return the case for the store, and drop it here."""
        evidence, self.evidence = self.evidence, None
        return evidence
