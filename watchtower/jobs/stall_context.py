"""The context of a stall: the input of `incidents` besides the condition."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from watchtower.diagnosis.diagnosed import Diagnosis
from watchtower.jobs.agents import NodeReport
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.condition import Stall, Why
from watchtower.jobs.detector import Detector
from watchtower.jobs.no_heartbeat import longest_run_s, rare_code_run_s
from watchtower.jobs.ranks import STILL_AFTER_S, RankRecord, is_exiting
from watchtower.jobs.samples import Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class StallContext:
    """The facts about a stall on which patience and the timing of diagnoses depend."""

    phase: str = ""
    """Phase of the top suspect. Empty outside phases, and in a phase whose step times are known."""
    typical_s: float = 0.0
    """Typical seconds of a step of the top suspect, 0 while they are not known."""
    starting: bool = False
    """The job has not made its first steps."""
    no_heartbeat: bool = False
    """No rank has heartbeats: the stall was detected by samples."""
    rare_s: float = math.inf
    """For how many seconds samples of a job without heartbeats rarely agree while a rank runs
    code. Infinity if no rank runs code, or in a job with heartbeats."""
    longest_run_s: float = 0.0
    """Longest time for which samples of a job without heartbeats agreed before a change."""
    all_still: bool = False
    """At least two ranks have not finished, and none of them moves."""
    dumps_have: int = 0
    """Number of live ranks with at least one dump of this stall."""
    dumps_want: int = 0
    """Number of live ranks whose agents report."""
    stalled_s: float = 0.0
    """Length of the stall in seconds."""
    is_new: bool = False
    """The stall began before set-up had taken too long."""
    has_stepped: bool = False
    """Every rank has made a step."""
    still_s: float = 0.0
    """Seconds for which the job made no step and the top suspect did not move. Without a suspect:
    the length of the stall."""
    evidence: tuple[float, ...] = ()
    """A value that changes whenever new evidence could change a diagnosis."""


def stall_context_of(
    attempt: Attempt,
    nodes: Mapping[str, NodeReport],
    detector: Detector,
    stall: Stall,
    diagnosis: Diagnosis | None,
    now: float,
    samples: Samples | None = None,
) -> StallContext:
    """Return the context of `stall`; `diagnosis` is the latest one, or None.

    `samples`: for a job without heartbeats.
    """
    live = detector.find_reporting(attempt.live(), nodes, now)
    # The time of each rank's newest dump shows new dumps. Their number does not, because only the
    # last two are stored.
    dumped_at = [record.dumps[-1][0] if record.dumps else -math.inf for record in live]
    dumped_at = [at for at in dumped_at if at >= stall.since]
    training_moved_at = [record.moved_at() for record in live if not is_exiting(record)]
    ended = sum(1 for record in attempt.ranks.values() if not record.is_live)
    suspect = _find_suspect(attempt, diagnosis)
    phase, typical_s = _pace_of(attempt, suspect)
    return StallContext(
        phase=phase,
        typical_s=typical_s,
        starting=stall.why is Why.STARTUP,
        no_heartbeat=stall.why is Why.UNCHANGED,
        rare_s=rare_code_run_s(samples, detector.policy) if samples else math.inf,
        longest_run_s=longest_run_s(samples) if samples else 0.0,
        all_still=len(training_moved_at) > 1 and max(training_moved_at) < now - STILL_AFTER_S,
        stalled_s=now - stall.since,
        is_new=stall.since <= attempt.set_up_by(detector.policy),
        has_stepped=attempt.step() >= 0,
        still_s=now - max(stall.since, _moved_at(suspect, diagnosis)),
        dumps_have=len(dumped_at),
        dumps_want=len(live),
        evidence=(sum(dumped_at), ended, len(live), len(attempt.ranks)),
    )


def _moved_at(suspect: RankRecord | None, diagnosis: Diagnosis | None) -> float:
    """Return when a rank last moved; `-inf` if it has not moved since it was first seen: as far as
    anything shows, it was still before, too.

    CPU does not count if the dumps show that its training thread waits: it may poll.
    """
    if suspect is None or diagnosis is None:
        return -math.inf
    moved_at = suspect.moved_at(waits=not diagnosis.suspects_moving)
    return moved_at if moved_at > suspect.first_seen_at else -math.inf


def _find_suspect(attempt: Attempt, diagnosis: Diagnosis | None) -> RankRecord | None:
    if diagnosis is None or not diagnosis.suspects:
        return None
    return attempt.ranks.get(diagnosis.suspects[0].rank)


def _pace_of(attempt: Attempt, suspect: RankRecord | None) -> tuple[str, float]:
    """Return the phase of the top suspect and the seconds of its typical step."""
    beat = suspect.vitals.beat if suspect else None
    pace = attempt.paces.get(beat.phase) if beat else None
    if pace is not None and pace.is_learned:
        return "", pace.typical_s
    return beat.phase if beat else "", attempt.pace("").typical_s
