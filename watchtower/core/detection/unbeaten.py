"""Ranks without heartbeats: a job that shows no steps is watched by looks, slower and less sure.

When no rank's stack and no collective record has changed for some looks, and nothing moves, the job
is stalled. Who waits for a GPU or a peer may spin, so that a rank which computes where it may wait
is none that works; but then more looks are needed, and the more of them the less such looks told
of this job before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

from watchtower.core.detection.looks import Looks
from watchtower.core.fleet.generation import Generation, RankRecord
from watchtower.core.policy import Policy
from watchtower.core.reading.frames import FrameClass
from watchtower.core.reading.kernel import HELD
from watchtower.core.reading.movement import moves_storage, transfers
from watchtower.wire.report import ProcessState

HELD_LOOKS = 2
"""Looks that must agree when a rank is stopped, traced or in state D: that is no place to work."""

SPINNING = 3
"""Times as many looks must agree when some rank computes: it may only wait that way."""

MIN_RANKS = 2
"""A rank alone waits for nobody: what it does for long may be its work."""

AT_WORK = frozenset(
    {
        FrameClass.COMPILE,
        FrameClass.CHECKPOINT,
        FrameClass.NETWORK,
        FrameClass.CHILD,
        FrameClass.DATALOADER,
    }
)
"""Classes in which a rank whose process tree computes is at work, however long it stands there."""


def is_unbeaten(gen: Generation) -> bool:
    """Tell whether no rank of the generation has beaten a step."""
    return not any(r.vitals.beat and r.vitals.beat.step >= 0 for r in gen.ranks.values())


def wants_look(gen: Generation, looks: Looks, policy: Policy, now: float) -> bool:
    """Tell whether it is time to look at all ranks. A job that does nothing by order is left."""
    if not looks.is_due(policy.unbeaten_look_s, now) or not is_unbeaten(gen):
        return False
    if now - gen.began_at < policy.unbeaten_look_s:
        return False
    return any(record.vitals.state is not ProcessState.STOPPED for record in gen.live())


def unchanged_since(
    gen: Generation, seen: Sequence[RankRecord], looks: Looks, policy: Policy, now: float
) -> float | None:
    """Say since when nothing has changed, when that is for too long; else null.

    `seen` are the live ranks whose agents report.
    """
    began_at = max(gen.began_at, gen.resumed_at)
    if len(seen) < MIN_RANKS or now - began_at <= policy.startup_grace_s:
        return None
    agreed = looks.agreed({record.vitals.rank for record in seen})
    working = _working(seen, (policy.unbeaten_looks - 1) * policy.unbeaten_look_s, now)
    if not working:
        looks.note_still(agreed)
    if any(_is_at_work(record, looks, policy) for record in seen):
        looks.begin_anew(now)  # what ends now has not had time to show what comes of it
        return None
    if agreed < needed_looks(seen, working, looks, policy, now):
        return None
    last_moved_at = max(record.moved_at for record in seen)
    return looks.since if working else max(looks.since, last_moved_at)


def needed_looks(
    seen: Sequence[RankRecord],
    working: Sequence[RankRecord],
    looks: Looks,
    policy: Policy,
    now: float,
) -> int:
    """Count the looks that have to agree. One that somebody is held at needs fewest."""
    needed = ceil(policy.unbeaten_looks)
    if any(_is_held(record, policy, now) for record in seen):
        return min(HELD_LOOKS, needed)
    once = ceil(policy.learned_factor * looks.longest(still=not working))
    if not working:
        return max(needed, once)
    return max(SPINNING * needed, looks.needed_by_chance(), once)


def goes_on(gen: Generation, looks: Looks, policy: Policy) -> bool:
    """Tell whether every rank is there and went on since the start: it works, only without beats.

    What ranks do before the grace is over may be no more than their imports.
    """
    since = gen.began_at + policy.startup_grace_s
    if not looks.go_on and not gen.missing_ranks():
        looks.go_on = all(looks.changed_since(r.vitals.rank, since) for r in gen.live())
    return looks.go_on


def has_changed(gen: Generation, looks: Looks, policy: Policy, now: float) -> bool:
    """Tell whether the latest looks found anything changed."""
    since = now - policy.unbeaten_looks * policy.unbeaten_look_s
    return any(looks.changed_since(record.vitals.rank, since) for record in gen.live())


def change_limit_s(looks: Looks, policy: Policy) -> float:
    """Seconds without a change after which a job without heartbeats is not called healthy.

    Three times the longest run of samples that agreed and then changed, as three typical steps.
    """
    longest = 1 + max(looks.longest(still=False), looks.longest(still=True))
    window = max(policy.unbeaten_looks, policy.no_step_factor * longest)
    return max(policy.no_step_floor_s, window * policy.unbeaten_look_s)


def _working(seen: Iterable[RankRecord], within_s: float, now: float) -> list[RankRecord]:
    return [record for record in seen if now - record.moved_at < within_s]


def _is_held(record: RankRecord, policy: Policy, now: float) -> bool:
    """Tell whether a rank was kept from running between the last two looks."""
    held = record.vitals.state in HELD | {ProcessState.UNINTERRUPTIBLE}
    return held and now - record.moved_at >= policy.unbeaten_look_s


def _is_at_work(record: RankRecord, looks: Looks, policy: Policy) -> bool:
    """Tell whether a rank moves data now, or computes at a place that is no wait."""
    movement = record.vitals.movement
    computes = movement.cpu_cores >= policy.moving_cpu_cores
    return (
        (computes and looks.class_of(record.vitals.rank) in AT_WORK)
        or transfers(movement)
        or moves_storage(movement)
    )
