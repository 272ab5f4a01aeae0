"""What people did, as they are shown: acknowledgements, silences, answers about verdicts."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.incidents.calibration import Band
from watchtower.incidents.incident import Ack, Feedback, Incident, Silence, SilenceKind
from watchtower.jobs.keeper import Keeper
from watchtower.wire.verdict import Cause
from watchtower.writing.times import rfc3339


@dataclass(frozen=True, slots=True, kw_only=True)
class AckView:
    """The acknowledgement of an incident, as the API returns it."""

    at: str
    by: str
    note: str


def view_ack(ack: Ack) -> AckView:
    """Return an acknowledgement as the API returns it."""
    return AckView(at=rfc3339(ack.at), by=ack.by, note=ack.note)


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceView:
    """A silence, as the API returns it. It names one job, one node or one user."""

    id: str
    job: str | None
    node: str | None
    user: str | None
    since: str
    until: str
    by: str
    """The person who asked for it; may be empty."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Names that a silence may match. No silence applies to empty ones, which are not known."""

    job: str = ""
    node: str = ""
    user: str = ""


def subject_of(incident: Incident) -> Subject:
    """Return what a silence of this incident may name.

    Its user is frozen at the opening. Its node is the one node that every verdict so far has
    blamed: a corrected verdict may end a silence, but never begins one.
    """
    user = incident.identity.user
    return Subject(job=incident.job, node=incident.only_node, user=user)


def job_subject(job: Keeper, slow_node: str) -> Subject:
    """Return what a silence of this job may name. `slow_node` is the one node that slows it down;
    empty if there is none. The node that an open incident blames is in `subject_of` only."""
    return Subject(job=job.name, node=slow_node, user=job.labels.user if job.labels else "")


def view_silence(silence: Silence) -> SilenceView:
    """Return a silence as the API returns it."""
    named = {kind.value: silence.name if kind is silence.kind else None for kind in SilenceKind}
    return SilenceView(
        id=silence.id,
        job=named["job"],
        node=named["node"],
        user=named["user"],
        since=rfc3339(silence.since),
        until=rfc3339(silence.until),
        by=silence.by,
        reason=silence.reason,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackView:
    """The answer of a person about the verdict of an incident."""

    at: str
    right: bool
    """Whether the verdict was right."""
    rank: int | None
    """The rank that really held up the job; null if it was not given."""
    cause: Cause | None
    """The real cause; null if it was not given."""
    by: str
    note: str
    verdict_cause: Cause
    """Cause of the verdict that was judged."""
    confidence: float
    """Its confidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseCount:
    """How often verdicts with one cause were right."""

    cause: Cause
    right_count: int
    """Number of right verdicts."""
    wrong_count: int
    """Number of wrong verdicts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How often verdicts were right, by their confidence."""

    items: list[Band]
    """By confidence, lowest first."""
    causes: list[CauseCount]
    """Causes with an answer, those with the most wrong verdicts first."""
    right_count: int
    """Number of right verdicts."""
    wrong_count: int
    """Number of wrong verdicts."""


def view_feedback(given: Feedback) -> FeedbackView:
    """Return an answer as the API returns it."""
    return FeedbackView(
        at=rfc3339(given.at),
        right=given.right,
        rank=given.rank,
        cause=given.cause,
        by=given.by,
        note=given.note,
        verdict_cause=given.verdict_cause,
        confidence=given.confidence,
    )
