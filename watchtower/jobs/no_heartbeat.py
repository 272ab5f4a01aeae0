"""Detects stalls of jobs without heartbeats by stack samples: later and with less certainty.

A job is stalled when no rank's stack and no collective log has changed for some samples, and
nothing moves. A rank that waits for a GPU or a peer may use 100 % CPU. CPU use in such a place is
not progress, but it needs more samples, unless native places show that it is only a wait, and that
another rank is blocked elsewhere. The more samples of this job agreed by chance before, the more
are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf

from watchtower.evidence.kernel import HELD
from watchtower.evidence.movement import read_movement
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.ranks import RankRecord
from watchtower.jobs.samples import RunKind, Samples
from watchtower.policy import Policy
from watchtower.wire.report import ProcessState

SPINNING = 3
"""Factor on the number of samples that must agree if a rank computes and its native place does not
show whether it works or waits in a loop. Most of a healthy step may pass in such a place."""

BLOCKED_SHARE = 1 / 2
"""Share of the usual time that is enough if the thread of a rank outside a wait for its device did
not run at all between the samples."""

BRIEF_SHARE = 1 / 3
"""Share of the usual interval between samples, while the main thread of a rank is blocked."""

BRIEF_INTERVALS = 4
"""Usual intervals after which a thread that is still blocked is sampled in the usual interval
again: most such jobs are idle."""

MIN_RANKS = 2
"""A job needs this many ranks. A single rank does not wait for others, so that it may be working
even if nothing changes."""


def has_no_heartbeat(attempt: Attempt) -> bool:
    """Return whether no rank of the attempt has reported a step."""
    return not any(r.vitals.beat and r.vitals.beat.step >= 0 for r in attempt.ranks.values())


def wants_sample(attempt: Attempt, samples: Samples, policy: Policy, now: float) -> bool:
    """Return whether a sample of all ranks is due. Not if every rank is stopped (SIGSTOP)."""
    if not samples.is_due(BRIEF_SHARE * policy.no_heartbeat_sample_s, now):
        return False
    if not has_no_heartbeat(attempt) or not samples.is_due(
        _sample_interval_s(attempt, policy), now
    ):
        return False
    if now - attempt.began_at < BRIEF_SHARE * policy.no_heartbeat_sample_s:
        return False
    return any(record.vitals.state is not ProcessState.STOPPED for record in attempt.live())


def unchanged_since(
    attempt: Attempt, reporting: Sequence[RankRecord], samples: Samples, policy: Policy, now: float
) -> float | None:
    """Return since when nothing has changed if the job is stalled, else None.

    `reporting` are the live ranks whose agents report.
    """
    if len(reporting) < MIN_RANKS:
        return None
    agreed_s = samples.agreed_s({record.vitals.rank for record in reporting})
    is_set_up = samples.since > attempt.set_up_by(policy)
    least_s = _least_s(reporting, samples, policy, is_set_up=is_set_up)
    working = _working(reporting, samples, least_s, now)
    if not working:
        samples.note_still(agreed_s)
    if any(_is_at_work(record, samples, policy) for record in reporting):
        samples.reset(now)  # a change that this work causes may appear only later
        return None
    if agreed_s < _needed_s(reporting, working, samples, least_s, policy, now):
        return None
    if working:
        return samples.since
    return max(samples.since, *(_moved_at(record, samples) for record in reporting))


def _sample_interval_s(attempt: Attempt, policy: Policy) -> float:
    """Return the seconds between two samples: fewer soon after a thread was blocked."""
    usual_s = policy.no_heartbeat_sample_s
    brief_s = BRIEF_SHARE * usual_s
    blocked = (record.vitals.blocked_s for record in attempt.live())
    is_brief = any(brief_s <= seconds < BRIEF_INTERVALS * usual_s for seconds in blocked)
    return brief_s if is_brief else usual_s


def _needed_s(
    reporting: Sequence[RankRecord],
    working: Sequence[RankRecord],
    samples: Samples,
    least_s: float,
    policy: Policy,
    now: float,
) -> float:
    """Return for how many seconds the samples must agree: the fewest if a rank cannot run."""
    interval_s = policy.no_heartbeat_sample_s
    if any(_is_held(record, samples, policy, now) for record in reporting):
        return interval_s
    kind, factor = RunKind.ANY, SPINNING
    if not working:
        kind = RunKind.STILL
    elif _hold_up_others(working, reporting, samples):
        kind, factor = RunKind.CODE, 1
    once_s = policy.learned_factor * samples.longest_s(kind) - interval_s
    if not working:
        return max(least_s, once_s)
    count = max(factor * ceil(policy.no_heartbeat_samples), samples.needed_by_chance(kind))
    return max((count - 1) * interval_s, once_s)


def _hold_up_others(
    working: Sequence[RankRecord], reporting: Sequence[RankRecord], samples: Samples
) -> bool:
    """Return whether all ranks that move run code, and none of them only waits in a loop."""
    return len(working) < len(reporting) and all(
        samples.activity_of(record.vitals.rank).runs_code for record in working
    )


def _least_s(
    reporting: Sequence[RankRecord], samples: Samples, policy: Policy, *, is_set_up: bool
) -> float:
    """Return for how many seconds nothing may change or move until a still job is stalled.

    Until the job is set up, two samples are enough for a check: then the evidence decides.
    """
    usual_s = (ceil(policy.no_heartbeat_samples) - 1) * policy.no_heartbeat_sample_s
    if not _any_stays_blocked(reporting, samples):
        return usual_s
    return BLOCKED_SHARE * usual_s if is_set_up else BRIEF_SHARE * policy.no_heartbeat_sample_s


def _any_stays_blocked(reporting: Sequence[RankRecord], samples: Samples) -> bool:
    """Return whether the thread of a rank did not run between the latest two samples, and does not
    wait for its device."""
    ranks = [record.vitals.rank for record in reporting]
    return any(
        samples.stays_blocked(rank) and not samples.activity_of(rank).waits_for_device
        for rank in ranks
    )


def works_without_heartbeats(attempt: Attempt, samples: Samples, policy: Policy) -> bool:
    """Return whether no rank is missing and every rank's position changed after set-up.

    Such a job works without heartbeats. Earlier changes do not count: they may be imports.
    """
    since = attempt.set_up_by(policy)
    if not samples.has_worked and not attempt.missing_ranks():
        samples.has_worked = all(
            samples.changed_since(r.vitals.rank, since) for r in attempt.live()
        )
    return samples.has_worked


def has_changed(attempt: Attempt, samples: Samples, policy: Policy, now: float) -> bool:
    """Return whether any rank's position changed within the latest samples."""
    since = now - policy.no_heartbeat_samples * policy.no_heartbeat_sample_s
    return any(samples.changed_since(record.vitals.rank, since) for record in attempt.live())


def change_limit_s(samples: Samples, policy: Policy) -> float:
    """Return the seconds without a change after which a job without heartbeats is not healthy.

    This is `no_step_factor` times the longest run of samples that agreed before a change. Such a
    run is used as the length of a step.
    """
    interval_s = policy.no_heartbeat_sample_s
    longest_s = interval_s + longest_run_s(samples)
    window_s = max(policy.no_heartbeat_samples * interval_s, policy.no_step_factor * longest_s)
    return max(policy.no_step_floor_s, window_s)


def longest_run_s(samples: Samples) -> float:
    """Return the seconds of the longest run of samples that agreed before a change."""
    return max(samples.longest_s(), samples.longest_s(RunKind.STILL))


def rare_code_run_s(samples: Samples, policy: Policy) -> float:
    """Return for how many seconds samples of this job rarely agree while a rank runs code.

    Infinity if no rank ran code in the present run of samples.
    """
    if not samples.ran_code:
        return inf
    return samples.needed_by_chance(RunKind.CODE) * policy.no_heartbeat_sample_s


def _working(
    reporting: Sequence[RankRecord], samples: Samples, within_s: float, now: float
) -> list[RankRecord]:
    working = [record for record in reporting if now - _moved_at(record, samples) < within_s]
    ranks = [record.vitals.rank for record in reporting]
    if working or not all(samples.activity_of(rank).waits_for_device for rank in ranks):
        return working
    # If all wait for their devices, these may work for long. A thread that does not run is in one
    # wait. A thread that polls may be in many, one after the other.
    return [
        record
        for record in reporting
        if not samples.stays_blocked(record.vitals.rank) and now - record.moved_at() < within_s
    ]


def _moved_at(record: RankRecord, samples: Samples) -> float:
    return record.moved_at(waits=samples.is_still(record.vitals.rank))


def _is_held(record: RankRecord, samples: Samples, policy: Policy, now: float) -> bool:
    """Return whether a rank could not run between the last two samples."""
    held = record.vitals.state in HELD | {ProcessState.UNINTERRUPTIBLE}
    return held and now - _moved_at(record, samples) >= policy.no_heartbeat_sample_s


def _is_at_work(record: RankRecord, samples: Samples, policy: Policy) -> bool:
    """Return whether a rank moves data now, computes in a place that is not a wait, or serves: one
    that waits for a client has nothing to do, and the others wait for it.
    """
    rank = record.vitals.rank
    activity = samples.activity_of(rank)
    movement = read_movement(
        record.vitals.movement, policy.moving_cpu_cores, waits=samples.is_still(rank)
    )
    return (
        (movement.computes and activity.frame_class.traits.is_work)
        or activity.waits_for_client
        or movement.moves_data
    )
