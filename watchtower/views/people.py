"""What people did, as they are shown: acknowledgements, silences, answers about verdicts, and how
often verdicts were right by these answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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


BANDS = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Lowest confidence of each band. Below 0.5 a verdict names no cause, so that is one band."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Verdicts of similar confidence."""

    confidence_from: float
    """Lowest confidence of these verdicts."""
    confidence_to: float
    """Not included, except in the last band."""
    right_count: int
    """Number of right verdicts."""
    wrong_count: int
    """Number of wrong verdicts."""
    mean_confidence: float | None
    """Of these verdicts; null without one."""
    right_share: float | None
    """Share of these verdicts that were right, 0 to 1; null without one. If confidence means what
    it says, it is near `mean_confidence`."""


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


def count_answers(given: Iterable[Feedback]) -> Counter[tuple[Cause, bool]]:
    """Return the number of answers by cause of the verdict, and by whether it was right."""
    return Counter((each.verdict_cause, each.right) for each in given)


def view_calibration(given: Sequence[Feedback]) -> Calibration:
    """Return how often verdicts were right, as these answers show it."""
    counts = count_answers(given)
    causes = [
        CauseCount(cause=cause, right_count=counts[cause, True], wrong_count=counts[cause, False])
        for cause in Cause
        if counts[cause, True] or counts[cause, False]
    ]
    return Calibration(
        items=count_bands(given),
        causes=sorted(causes, key=lambda each: (-each.wrong_count, each.cause.value)),
        right_count=sum(each.right_count for each in causes),
        wrong_count=sum(each.wrong_count for each in causes),
    )


def count_bands(judged: Iterable[Feedback]) -> list[Band]:
    """Return all bands, from the lowest confidence to the highest."""
    members: list[list[Feedback]] = [[] for _ in BANDS]
    for each in judged:
        members[max(number for number, low in enumerate(BANDS) if each.confidence >= low)].append(
            each
        )
    ends = (*BANDS[1:], 1.0)
    return [_count(low, end, found) for low, end, found in zip(BANDS, ends, members, strict=True)]


def _count(low: float, end: float, judged: Sequence[Feedback]) -> Band:
    right, number = sum(each.right for each in judged), len(judged)
    mean = sum(each.confidence for each in judged) / number if number else None
    return Band(
        confidence_from=low,
        confidence_to=end,
        right_count=right,
        wrong_count=number - right,
        mean_confidence=None if mean is None else round(mean, 3),
        right_share=round(right / number, 3) if number else None,
    )
