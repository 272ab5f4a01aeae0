"""Describes a job's progress by one value and one sentence. Its status is decided elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.core.detection.condition import ConditionKind
from watchtower.core.detection.no_heartbeat import has_no_heartbeat
from watchtower.core.diagnosed import Diagnosis
from watchtower.core.fleet.generation import Generation
from watchtower.core.text import clean, format_duration
from watchtower.wire.verdict import Progress

_NOT_WATCHED = frozenset({ConditionKind.ENDED, ConditionKind.ENDING, ConditionKind.LOST})
_GOES_ON = frozenset({ConditionKind.STEPPING, ConditionKind.SLOW, ConditionKind.CHANGING})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressView:
    """The value and the sentence."""

    progress: Progress | None
    text: str


def view_progress(
    gen: Generation,
    kind: ConditionKind | None,
    diagnosis: Diagnosis | None,
    *,
    limit_s: float,
    now: float,
) -> ProgressView:
    """Return the progress of a generation whose latest condition is of this kind.

    It is None if the progress is not known. After `limit_s` seconds without a step or without
    movement, the job makes no progress.
    """
    if kind is None or kind in _NOT_WATCHED:
        return ProgressView(progress=None, text="")
    if has_no_heartbeat(gen):
        return _without_steps(gen, kind, diagnosis, limit_s, now)
    last_at = _last_step_at(gen)
    ago_s = now - last_at
    if kind in _GOES_ON and ago_s <= limit_s:
        text = f"Step {gen.step()}, the latest step was {format_duration(ago_s)} ago."
        return ProgressView(progress=Progress.STEPPING, text=text)
    if kind is ConditionKind.STARTING and ago_s <= limit_s:
        text = f"Step {gen.step()}. Too few steps were seen to know how long a step takes."
        return ProgressView(progress=Progress.STARTING, text=text)
    text = f"No step for {format_duration(ago_s)}; all ranks have made step {gen.step()}."
    return ProgressView(progress=Progress.NONE, text=text + _name_phases(gen))


def _without_steps(
    gen: Generation, kind: ConditionKind, diagnosis: Diagnosis | None, limit_s: float, now: float
) -> ProgressView:
    has_file = any(r.vitals.beat for r in gen.ranks.values())
    if has_file and kind in (ConditionKind.STARTING, ConditionKind.STEPLESS):
        since_start = format_duration(now - gen.began_at)
        text = f"No first step yet, {since_start} after the start.{_name_phases(gen)}"
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
    if _is_idle(gen, diagnosis, limit_s, now):
        text = "No rank moves, and no rank is known to wait for another."
        return ProgressView(progress=Progress.IDLE, text=text)
    if kind is ConditionKind.BLIND:
        text = "Not known: no rank has heartbeats, and no stack sample can be taken."
        return ProgressView(progress=Progress.NONE, text=text)
    if has_file:
        return ProgressView(progress=Progress.NONE, text="No first step was made.")
    text = "No rank has heartbeats, and the stack samples do not change."
    return ProgressView(progress=Progress.NONE, text=text)


def _is_idle(gen: Generation, diagnosis: Diagnosis | None, limit_s: float, now: float) -> bool:
    if diagnosis is None or diagnosis.suspects or diagnosis.peers_waiting:
        return False
    return all(now - record.moved_at() > limit_s for record in gen.live())


def _last_step_at(gen: Generation) -> float:
    """Return the time of the latest step of any rank; without steps, when the generation began."""
    beats = ((r.seen_at, r.vitals.beat) for r in gen.ranks.values())
    steps = [seen_at - beat.age_s for seen_at, beat in beats if beat and beat.step >= 0]
    return max(steps, default=gen.began_at)


def _name_phases(gen: Generation) -> str:
    """Return " In phase: checkpoint.", or an empty string."""
    phases = {r.vitals.beat.phase for r in gen.live() if r.vitals.beat and r.vitals.beat.phase}
    shown = ", ".join(clean(phase, 40) for phase in sorted(phases)[:3])
    return f" In phase: {shown}." if shown else ""
