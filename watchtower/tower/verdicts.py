"""Puts a diagnosis, a status and times together into the verdict that is published."""

from __future__ import annotations

from watchtower.core.diagnosis.diagnosis import Diagnosis
from watchtower.core.phrases import clean
from watchtower.tower.clock import rfc3339
from watchtower.wire.verdict import Cause, Status, Verdict


def diagnosed_verdict(
    job: str, generation: int, status: Status, diagnosis: Diagnosis, diagnosed_at: float
) -> Verdict:
    """Write the verdict of a diagnosis; the incident is added when there is one."""
    return Verdict(
        job=job,
        generation=generation,
        status=status,
        cause=diagnosis.cause,
        confidence=round(diagnosis.confidence, 3),
        suspects=diagnosis.suspects,
        waiting=diagnosis.waiting,
        step=diagnosis.step,
        stalled_for_s=round(diagnosis.stalled_for_s, 1),
        summary=diagnosis.summary,
        evidence=diagnosis.evidence,
        missing_evidence=diagnosis.missing_evidence,
        alternatives=diagnosis.alternatives,
        next_steps=diagnosis.next_steps,
        diagnosed_at=rfc3339(diagnosed_at),
    )


def plain_verdict(
    job: str, generation: int, status: Status, reason: str, step: int | None
) -> Verdict:
    """Write the verdict of a job that has no diagnosis: healthy, or not looked at closely yet."""
    cause = {Status.SUSPECT: Cause.UNKNOWN, Status.SLOW: Cause.JOB_SLOW}.get(status)
    confidence = 0.9 if status is Status.SLOW else 0.0
    name = clean(job)
    summary = f"job {name} is {status.value}: {reason}"
    if status is Status.SLOW:
        summary = f"job {name} is slow: {reason}; its ranks are being looked at"
    if status is Status.SUSPECT:
        summary = f"job {name} is suspect: {reason}; dumps are being taken"
    return Verdict(
        job=job,
        generation=generation,
        status=status,
        cause=cause,
        confidence=confidence,
        summary=summary,
        step=step,
    )
