"""All steps became slower, and one rank hardly ever waits for the others: it sets the pace.

In a synchronous job the fast ranks wait inside the collective for the slow one: over many samples
the slow rank is the one that waits least. Not so when all work longer: then no rank is named.

Where the work is queued on GPUs, the host of the slow rank waits like the others: for its own GPU.
Then only what slows it down shows the rank: reduced clocks of its GPU, or a CPU limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, fsum, lgamma, log, log1p
from statistics import median

from watchtower.diagnosis import doubts
from watchtower.diagnosis.accusation import MAX_QUOTED, Accusation, Reason, ReasonKind, Tier
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.diagnosis.reasons import movement_reason, ranks_of, stack_reason
from watchtower.diagnosis.subjects import Ranks, WaitShares
from watchtower.evidence.case import MIN_SAMPLES
from watchtower.evidence.frame_class import FrameClass
from watchtower.wire.verdict import Cause

OTHERS_WAIT = 0.4
"""Share of samples that the others must be found waiting in: twice as long a step makes it half."""

WAITS_LEAST = 0.25
"""A straggler waits in at most this share of the samples that the others wait in."""

MAX_CHANCE = 0.02
"""Chance that some rank of the job waits so little although it is as fast as the others."""

MAX_SHARE = 0.25
"""More ranks than this share (and more than one) that wait little are the rule, not stragglers."""

COUNTS_WEIGHT, PACE_WEIGHT, SLOW_WEIGHT, HELD_BACK_WEIGHT = 0.75, 0.3, 0.9, 0.5

ECC_WEIGHT = 0.4
"""Less than that of reduced clocks: how much errors of the memory slow a GPU down is not known."""


def find(picture: Picture) -> Accusation | None:
    """Accuse the ranks that wait least, if the others wait much."""
    counted = _counted(picture)
    if len(counted) < 2:
        return None
    usual = median(share_of(item) for item in counted)
    if len(counted) == 2:
        usual = max(share_of(item) for item in counted)
    slow = [item for item in counted if _waits_little(item, usual, len(counted))]
    named = slow or _find_held_back(picture, counted)
    if usual < OTHERS_WAIT or not named or len(named) > max(1, MAX_SHARE * len(counted)):
        return None
    counts = _counts_reason(slow, counted) if slow else _even_reason(counted)
    reasons = [counts, Reason(ReasonKind.PACE, PACE_WEIGHT)]
    for item in named[:MAX_QUOTED]:
        if not item.waits:  # it had to be somewhere: that weighs nothing
            reasons += stack_reason(item, 0.0)
        reasons.append(movement_reason(item, 0.0))
        reasons += _find_brakes(picture, item.rank)
    why_not = (doubts.ONE_OF_TWO,) if len(counted) == 2 else ()
    return Accusation(
        cause=Cause.STRAGGLER,
        tier=Tier.PROGRESS,
        suspects=tuple(named),
        reasons=tuple(reasons),
        doubts=(doubts.UNCOUNTED,) if len(counted) < len(picture.live) else why_not,
        advice=(_find_reason(picture, named[0]) or _advise(named[0]), "top"),
    )


def _counts_reason(slow: list[Position], counted: list[Position]) -> Reason:
    shares = tuple(share_of(item) for item in counted if item not in slow)
    about = WaitShares(slow[0], shares)
    return Reason(ReasonKind.WAIT_COUNTS, COUNTS_WEIGHT, ranks_of(slow), about)


def _even_reason(counted: list[Position]) -> Reason:
    return Reason(ReasonKind.EVEN_COUNTS, 0.0, ranks_of(counted), Ranks(tuple(counted)))


def _find_held_back(picture: Picture, counted: list[Position]) -> list[Position]:
    """Find the ranks that something slows down, where most hosts wait for their GPUs."""
    if 2 * sum(item.waits_for_device for item in counted) < len(counted):
        return []
    return [
        item
        for item in counted
        if item.waits_for_device and (picture.slowed_gpu(item.rank) or picture.cpu_limit(item.rank))
    ]


def _find_brakes(picture: Picture, rank: int) -> Iterator[Reason]:
    """Return what slows the rank down."""
    if slowed := picture.slowed_gpu(rank):
        yield Reason(ReasonKind.GPU_CLOCK, HELD_BACK_WEIGHT, (rank,), slowed)
    if ecc := picture.ecc_errors(rank):
        yield Reason(ReasonKind.GPU_MEMORY, ECC_WEIGHT, (rank,), ecc)
    if limit := picture.cpu_limit(rank):
        yield Reason(ReasonKind.CPU_LIMIT, HELD_BACK_WEIGHT, (rank,), limit)


def _find_reason(picture: Picture, first: Position) -> str:
    """Return the advice for a known reason of its slowness; empty without one."""
    if picture.slowed_gpu(first.rank):
        return "cool_gpu"
    if picture.ecc_errors(first.rank):
        return "check_gpu_memory"
    return "raise_cpu_limit" if picture.cpu_limit(first.rank) else ""


def find_slow_job(picture: Picture) -> Accusation:
    """Return that the job is slow and no rank is known to be the reason."""
    counted = _counted(picture)
    reasons = [Reason(ReasonKind.PACE, SLOW_WEIGHT)]
    if counted:
        reasons.append(_even_reason(counted))
    return Accusation(
        cause=Cause.JOB_SLOW,
        tier=Tier.PROGRESS,
        reasons=tuple(reasons),
        advice=("look_at_what_ranks_share",),
        about=Ranks(tuple(counted)),
    )


def _counted(picture: Picture) -> list[Position]:
    return [item for item in picture.live if item.evidence.samples >= MIN_SAMPLES]


def _waits_little(position: Position, usual: float, among: int) -> bool:
    evidence = position.evidence
    chance = find_chance(evidence.waits, evidence.samples, usual) * among
    return share_of(position) <= WAITS_LEAST * usual and chance <= MAX_CHANCE


def find_chance(waits: int, samples: int, usual: float) -> float:
    """Return the chance of at most `waits` of `samples` for a rank that waits as the usual one.

    This is the cumulative binomial distribution. Its terms are computed as logarithms: beyond 1,029
    samples a binomial coefficient may be too large for a float.
    """
    if waits >= samples or usual <= 0.0:
        return 1.0
    if usual >= 1.0:
        return 0.0
    log_usual, log_rest = log(usual), log1p(-usual)
    terms = (
        _log_ways(samples, n) + n * log_usual + (samples - n) * log_rest for n in range(waits + 1)
    )
    return min(1.0, fsum(map(exp, terms)))


def _log_ways(samples: int, chosen: int) -> float:
    """Return the logarithm of the number of ways to choose so many of the samples."""
    return lgamma(samples + 1) - lgamma(chosen + 1) - lgamma(samples - chosen + 1)


def share_of(position: Position) -> float:
    """Return in which share of its samples a rank was found waiting."""
    return position.evidence.waits / position.evidence.samples


def _advise(first: Position) -> str:
    """Choose by what the last stack shows it busy with; only one that computes may have a slow
    GPU."""
    if not first.waits and first.reading is not None:
        if first.frame_class is FrameClass.DATALOADER:
            return "look_at_storage_it_was_at"
        if not first.moving:
            return "look_at_what_it_waits_for"
    return "compare_node"
