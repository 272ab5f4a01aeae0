"""All steps became slower, and one rank hardly ever waits for the others: it sets the pace.

In a synchronous job the fast ranks wait inside the collective for the slow one: over many samples
the slow rank is the one that waits least. Not so when all work longer: then no rank is named.

Where the work is queued on GPUs, the host of the slow rank waits like the others: for its own GPU.
Then only what slows it down shows the rank: reduced clocks of its GPU, or a CPU limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp, fsum, lgamma, log, log1p
from statistics import median

from watchtower.diagnosis.accusation import (
    CANDIDATE,
    MAX_QUOTED,
    Accusation,
    Doubt,
    Reason,
    Tier,
    of_rank,
)
from watchtower.diagnosis.domain import ELSEWHERE, Line
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.diagnosis.reasons import movement_reason, ranks_of, stack_reason
from watchtower.diagnosis.words import name_rank, name_some, write_likewise
from watchtower.evidence.case import MIN_SAMPLES
from watchtower.evidence.frames import FrameClass
from watchtower.evidence.gpus import EccErrors, GpuUse
from watchtower.wire.verdict import Cause, Domain
from watchtower.writing.text import clean, count_ranks, join_sentences, join_words, write_slower

WHOM = (
    Line(
        Domain.GPU,
        "the GPU of the rank works with reduced clocks",
        lambda rank: rank.job.picture.slowed_gpu(rank.position.rank) is not None,
    ),
    Line(
        Domain.GPU,
        "errors of the memory of the rank's GPU increase now",
        lambda rank: rank.job.picture.ecc_errors(rank.position.rank) is not None,
    ),
    Line(
        Domain.SCHEDULER,
        "a CPU limit stops the rank",
        lambda rank: rank.job.picture.cpu_limit(rank.position.rank) is not None,
    ),
    *ELSEWHERE,
)

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

ONE_OF_TWO = Doubt("one_of_two", 0.7, "there are only two ranks, and one of them always waits less")
UNCOUNTED = Doubt("uncounted", CANDIDATE, "some ranks have too few samples")

COOL_GPU = (
    "check the temperature, the cooling and the power supply of GPU {device} of {node}: "
    "`nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER`"
)
CHECK_GPU_MEMORY = (
    "check the memory of GPU {device} of {node}: `nvidia-smi -q -d ECC,ROW_REMAPPER`; if its "
    "errors increase, drain the node and report the GPU to its vendor"
)
RAISE_CPU_LIMIT = (
    "raise or remove the CPU limit of rank {rank} (Kubernetes: `resources.limits.cpu`; Slurm: "
    "`--cpus-per-task`), or use fewer threads: `cat /proc/{pid}/cgroup` on {node} names the "
    "cgroup, its `cpu.stat` counts the stops"
)
LOOK_AT_STORAGE_IT_WAS_AT = (
    "check the storage that rank {rank} reads from on {node}: the rank was at {place}"
)
LOOK_AT_WHAT_IT_WAITS_FOR = (
    "check what rank {rank} waits for at {place} on {node}: it does not compute there"
)
COMPARE_NODE = "compare {node} with the other nodes: GPU clocks and throttling, CPU load, disk"
TOP = "`py-spy top --pid {pid}` on {node} shows where rank {rank} spends its time"
LOOK_AT_WHAT_RANKS_SHARE = (
    "check what all ranks share: storage, network, batches that became longer"
)


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
    reasons = [counts, Reason("heartbeat", PACE_WEIGHT, (), _write_pace(picture))]
    for item in named[:MAX_QUOTED]:
        if not item.waits:  # it had to be somewhere: that weighs nothing
            reasons += stack_reason(item, 0.0)
        reasons.append(movement_reason(item, 0.0))
        reasons += _find_brakes(picture, item)

    def why(position: Position) -> str:
        brake = _write_brake(picture, position)
        return f"{_write_waits(position, is_even=not slow)}{brake}"

    why_not = (ONE_OF_TWO,) if len(counted) == 2 else ()
    return Accusation(
        cause=Cause.STRAGGLER,
        tier=Tier.PROGRESS,
        suspects=tuple(named),
        reasons=tuple(reasons),
        doubts=(UNCOUNTED,) if len(counted) < len(picture.live) else why_not,
        why=why,
        summary=join_sentences(
            f"{name_rank(named[0])} {why(named[0])}",
            write_likewise(named),
            f"the other ranks wait for {name_some(named)}",
            _write_pace(picture),
        ),
        advice=(_advise_brake(picture, named[0]) or _advise(named[0]), TOP),
    )


def find_slow_job(picture: Picture) -> Accusation:
    """Return that the job is slow and no rank is known to be the reason."""
    counted, pace = _counted(picture), _write_pace(picture)
    reasons = [Reason("heartbeat", SLOW_WEIGHT, (), pace)]
    if counted:
        reasons.append(_even_reason(counted))
    even = "no rank waits much less than the others" if counted else ""
    return Accusation(
        cause=Cause.JOB_SLOW,
        tier=Tier.PROGRESS,
        reasons=tuple(reasons),
        summary=join_sentences(pace, even),
        advice=(LOOK_AT_WHAT_RANKS_SHARE,),
    )


def _write_pace(picture: Picture) -> str:
    """Return how much slower the job is than usual."""
    return write_slower(picture.case.slowdown, picture.case.typical_step_s)


def _write_waits(position: Position, *, is_even: bool) -> str:
    if is_even:
        return "waits for its GPU as often as the other ranks for theirs"
    waits, samples = position.evidence.waits, position.evidence.samples
    if not waits:
        return f"never waited for other ranks in {samples} samples"
    return f"waited for other ranks in only {waits} of {samples} samples"


def _counts_reason(slow: list[Position], counted: list[Position]) -> Reason:
    first, others = slow[0], [share_of(item) for item in counted if item not in slow]
    text = (
        f"found waiting for other ranks: rank {first.rank} in {share_of(first):.0%} of "
        f"{first.evidence.samples} samples, the others in {_write_shares(others)}"
    )
    return Reason("stacks", COUNTS_WEIGHT, ranks_of(slow), text)


def _even_reason(counted: list[Position]) -> Reason:
    text = (
        f"no rank waits much less than the others: {count_ranks(len(counted))} waited for others "
        f"in {_write_shares([share_of(item) for item in counted])} of their samples"
    )
    return Reason("stacks", 0.0, ranks_of(counted), text)


def _write_shares(shares: Sequence[float]) -> str:
    least, most = f"{min(shares):.0%}", f"{max(shares):.0%}"
    return least if least == most else f"{least} to {most}"


def _find_held_back(picture: Picture, counted: list[Position]) -> list[Position]:
    """Find the ranks that something slows down, where most hosts wait for their GPUs."""
    if 2 * sum(item.waits_for_device for item in counted) < len(counted):
        return []
    return [
        item
        for item in counted
        if item.waits_for_device and (picture.slowed_gpu(item.rank) or picture.cpu_limit(item.rank))
    ]


def _find_brakes(picture: Picture, item: Position) -> Iterator[Reason]:
    """Return what slows the rank down."""
    if slowed := picture.slowed_gpu(item.rank):
        yield of_rank("gpu", HELD_BACK_WEIGHT, item, _write_slowed_gpu(slowed))
    if ecc := picture.ecc_errors(item.rank):
        yield of_rank("gpu", ECC_WEIGHT, item, _write_ecc_errors(ecc))
    if limit := picture.cpu_limit(item.rank):
        yield of_rank("cgroup", HELD_BACK_WEIGHT, item, clean(limit.text, 96))


def _write_brake(picture: Picture, position: Position) -> str:
    """Return ", and ..." with what slows the rank down, if that is known."""
    if picture.slowed_gpu(position.rank):
        return ", and its GPU works with reduced clocks"
    if ecc := picture.ecc_errors(position.rank):
        return f", and {_write_ecc_errors(ecc)}"
    limit = picture.cpu_limit(position.rank)
    return f", and {clean(limit.text, 96)}" if limit else ""


def _write_slowed_gpu(use: GpuUse) -> str:
    load = f" ({clean(use.load, 96)})" if use.load else ""
    return (
        f"GPU {clean(use.device, 32)} works with reduced clocks{load}, because of heat, power or a "
        "fault of its hardware"
    )


def _write_ecc_errors(errors: EccErrors) -> str:
    """Return "the memory of GPU 0000:3b:00 has 17700 corrected errors a second at present"."""
    kinds = []
    if errors.corrected_per_s:
        kinds.append(f"{errors.corrected_per_s:.0f} corrected errors a second")
    if errors.has_uncorrected:
        kinds.append("new uncorrected errors")
    return f"the memory of GPU {clean(errors.device, 32)} has {join_words(kinds)} at present"


def _advise_brake(picture: Picture, first: Position) -> str:
    """Return the advice for a known reason of its slowness; empty without one."""
    if picture.slowed_gpu(first.rank):
        return COOL_GPU
    if picture.ecc_errors(first.rank):
        return CHECK_GPU_MEMORY
    return RAISE_CPU_LIMIT if picture.cpu_limit(first.rank) else ""


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
            return LOOK_AT_STORAGE_IT_WAS_AT
        if not first.moving:
            return LOOK_AT_WHAT_IT_WAITS_FOR
    return COMPARE_NODE
