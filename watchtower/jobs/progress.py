"""Describes a job's progress by one value and one sentence, and whether its health is known.

The status is decided elsewhere. `healthy` is also the status of a job of which too little is known:
`is_judged` and `describe_unjudged` distinguish them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from watchtower.diagnosis.diagnosed import Diagnosis
from watchtower.evidence.launchers import read_meeting
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.condition import ConditionKind
from watchtower.jobs.detector import Detector
from watchtower.jobs.incidents import AttemptWatch
from watchtower.jobs.no_heartbeat import change_limit_s, has_no_heartbeat
from watchtower.policy import Policy
from watchtower.wire.verdict import Progress, Status
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import clean, count_ranks, format_duration

_NOT_WATCHED = frozenset({ConditionKind.ENDED, ConditionKind.ENDING, ConditionKind.LOST})
_GOES_ON = frozenset({ConditionKind.STEPPING, ConditionKind.SLOW, ConditionKind.CHANGING})
_KNOWN = frozenset({ConditionKind.STEPPING, ConditionKind.SLOW, ConditionKind.IDLE})
"""Conditions that show by themselves that a job is healthy, if that is its status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressView:
    """The value and the sentence."""

    progress: Progress | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unjudged:
    """Why it is not known whether a job is healthy. Fields as in `NotJudged`."""

    text: str
    missing: tuple[str, ...]
    until: float | None
    """Time of the tower's clock."""


def is_judged(attempt: Attempt, watch: AttemptWatch, policy: Policy) -> bool:
    """Return whether the status of a job is known: False if it is healthy by default only.

    Changes of stack samples soon after the start do not count, as they may be imports.
    """
    if watch.status is not Status.HEALTHY or watch.kind in _KNOWN:
        return True
    return watch.kind is ConditionKind.CHANGING and _has_changed_later(attempt, watch, policy)


def _has_changed_later(attempt: Attempt, watch: AttemptWatch, policy: Policy) -> bool:
    samples, since = watch.samples, attempt.set_up_by(policy)
    return samples.has_worked or any(samples.changed_since(rank, since) for rank in attempt.ranks)


def describe_unjudged(
    attempt: Attempt, watch: AttemptWatch, detector: Detector, now: float
) -> Unjudged | None:
    """Return what is missing for a judgement and when it comes; None if the job is judged."""
    if is_judged(attempt, watch, detector.policy):
        return None
    if not attempt.ranks and watch.kind is ConditionKind.STARTING:
        until = _meets_until(attempt, detector.policy, now)
        return Unjudged(text="starting", missing=(watch.reason,), until=until)
    if watch.kind is ConditionKind.ENDING:
        return Unjudged(
            text="ending, not judged yet", missing=("the last rank has just ended",), until=None
        )
    has_worked = attempt.step() >= 0 or _has_changed_later(attempt, watch, detector.policy)
    until = _judged_at(attempt, watch, detector)
    return Unjudged(
        text="not judged yet" if has_worked else "starting, not judged yet",
        missing=tuple(_list_missing(attempt, watch)),
        until=until if until >= now else None,
    )


def _list_missing(attempt: Attempt, watch: AttemptWatch) -> Iterator[str]:
    absent = max(0, attempt.world_size - len(attempt.ranks))
    if absent:
        missing = attempt.missing_ranks()
        names = clean(name_ranks(missing), 80) + (" and more" if len(missing) < absent else "")
        yield f"{len(attempt.ranks)} of {count_ranks(attempt.world_size)} were found (not {names})"
    if any(record.vitals.beat for record in attempt.ranks.values()):
        if attempt.step() >= 0:
            yield "too few steps were seen to know how long one takes"
        elif has_no_heartbeat(attempt):
            yield "no rank has made a step"
        else:
            yield "some ranks have not made a step"
        if not has_no_heartbeat(attempt) or watch.kind is ConditionKind.STARTING:
            return
    else:
        yield "no rank has heartbeats"
    if not watch.samples.latest:
        yield "no stack sample was taken yet"
    elif watch.kind is ConditionKind.CHANGING:
        yield "stacks have changed only soon after the start, where they may be imports"
    else:
        yield "the latest stack samples show no change"


def _meets_until(attempt: Attempt, policy: Policy, now: float) -> float | None:
    """Return when a job whose launchers wait for each other is suspect; None if it never is."""
    meeting = read_meeting(attempt.launchers.list_evidence(now))
    return now - meeting.since_last_s + policy.startup_grace_s if meeting.is_judged else None


def _judged_at(attempt: Attempt, watch: AttemptWatch, detector: Detector) -> float:
    """Return when the job is suspect at the latest if no step and no change is seen."""
    policy, began_at = detector.policy, max(attempt.began_at, attempt.resumed_at)
    if has_no_heartbeat(attempt) and watch.kind is not ConditionKind.STARTING:
        first_at = began_at + policy.no_heartbeat_sample_s
        since = max(began_at, watch.samples.since if watch.samples.has_begun else first_at)
        return since + change_limit_s(watch.samples, policy)
    since = max(began_at, _last_step_at(attempt))
    is_in_phase = any(r.vitals.beat and r.vitals.beat.phase for r in attempt.live())
    if is_in_phase and attempt.step() >= 0:
        return since + max(policy.startup_grace_s, policy.phase_patience_s)
    has_stepped = attempt.step() >= 0
    late_at = since + policy.startup_grace_s if has_stepped else attempt.set_up_by(policy)
    return late_at if is_in_phase else min(late_at, since + detector.step_limit_s(attempt))


def view_progress(
    attempt: Attempt,
    kind: ConditionKind | None,
    diagnosis: Diagnosis | None,
    *,
    limit_s: float,
    now: float,
) -> ProgressView:
    """Return the progress of an attempt whose latest condition is of this kind.

    It is None if the progress is not known. After `limit_s` seconds without a step or without
    movement, the job makes no progress.
    """
    if kind is None or kind in _NOT_WATCHED:
        return ProgressView(progress=None, text="")
    if not attempt.ranks:
        return ProgressView(progress=Progress.STARTING, text="No rank was started yet.")
    if has_no_heartbeat(attempt):
        return _without_steps(attempt, kind, diagnosis, limit_s, now)
    last_at = _last_step_at(attempt)
    ago_s = now - last_at
    if kind in _GOES_ON and ago_s <= limit_s:
        text = f"Step {attempt.step()}, the latest step was {format_duration(ago_s)} ago."
        return ProgressView(progress=Progress.STEPPING, text=text)
    if kind is ConditionKind.STARTING and ago_s <= limit_s:
        text = f"Step {attempt.step()}. Too few steps were seen to know how long a step takes."
        return ProgressView(progress=Progress.STARTING, text=text)
    text = f"No step for {format_duration(ago_s)}; all ranks have made step {attempt.step()}."
    return ProgressView(progress=Progress.NONE, text=text + _name_phases(attempt))


def _without_steps(
    attempt: Attempt, kind: ConditionKind, diagnosis: Diagnosis | None, limit_s: float, now: float
) -> ProgressView:
    has_file = any(r.vitals.beat for r in attempt.ranks.values())
    if has_file and kind in (ConditionKind.STARTING, ConditionKind.STEPLESS):
        since_start = format_duration(now - attempt.began_at)
        text = f"No first step yet, {since_start} after the start.{_name_phases(attempt)}"
        return ProgressView(progress=Progress.STARTING, text=text)
    if kind is ConditionKind.CHANGING:
        text = "No rank has heartbeats. The job makes progress: its stack samples change."
        return ProgressView(progress=Progress.STEPPING, text=text)
    if kind is ConditionKind.UNWATCHED:
        text = "No rank has heartbeats. Stack samples are being compared."
        return ProgressView(progress=Progress.STARTING, text=text)
    if kind is ConditionKind.IDLE:
        text = "A rank waits for clients: the job has nothing to do."
        return ProgressView(progress=Progress.IDLE, text=text)
    if _is_idle(attempt, diagnosis, limit_s, now):
        text = "No rank moves, and no rank is known to wait for another."
        return ProgressView(progress=Progress.IDLE, text=text)
    if kind is ConditionKind.BLIND:
        text = "Not known: no rank has heartbeats, and no stack sample can be taken."
        return ProgressView(progress=Progress.NONE, text=text)
    if has_file:
        return ProgressView(progress=Progress.NONE, text="No first step was made.")
    text = "No rank has heartbeats, and the stack samples do not change."
    return ProgressView(progress=Progress.NONE, text=text)


def _is_idle(attempt: Attempt, diagnosis: Diagnosis | None, limit_s: float, now: float) -> bool:
    if diagnosis is None or diagnosis.suspects or diagnosis.peers_waiting:
        return False
    return all(now - record.moved_at() > limit_s for record in attempt.live())


def _last_step_at(attempt: Attempt) -> float:
    """Return the time of the latest step of any rank; without steps, when the attempt began."""
    beats = ((r.seen_at, r.vitals.beat) for r in attempt.ranks.values())
    steps = [seen_at - beat.age_s for seen_at, beat in beats if beat and beat.step >= 0]
    return max(steps, default=attempt.began_at)


def _name_phases(attempt: Attempt) -> str:
    """Return " In phase: checkpoint.", or an empty string."""
    phases = {r.vitals.beat.phase for r in attempt.live() if r.vitals.beat and r.vitals.beat.phase}
    shown = ", ".join(clean(phase, 40) for phase in sorted(phases)[:3])
    return f" In phase: {shown}." if shown else ""
