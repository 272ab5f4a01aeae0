"""All ranks have entered the same collective and it does not end: no rank is to blame.

The fault is below the ranks then: links, switches, network cards, the library. Accusing one of them
would send people to the wrong machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from watchtower.diagnosis.accusation import (
    CANDIDATE,
    STACK_MISSING,
    Accusation,
    Doubt,
    Reason,
    Tier,
)
from watchtower.diagnosis.advice import CHECK_SEPARATED, DUMP_THREADS, TRY_OTHER_NODES
from watchtower.diagnosis.domain import Line
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.diagnosis.reasons import CALLED_WEIGHT, LOG_WEIGHT, ranks_of, same_call_reason
from watchtower.diagnosis.separation import Separation, do_all_wait
from watchtower.diagnosis.waits.callsites import site_of
from watchtower.diagnosis.waits.collective_logs import CollectiveLogs
from watchtower.diagnosis.waits.graph import EndKind, WaitGraph, WaitPoint, name_point
from watchtower.diagnosis.words import name_waits
from watchtower.evidence.frames import FrameClass
from watchtower.wire.report import ProcessState
from watchtower.wire.verdict import Cause, Domain
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import count_ranks, format_duration, join_sentences

WHOM = (
    Line(
        Domain.NETWORK,
        "the ranks are on several nodes, and something measured points to what is between them: "
        "collective logs, all GPUs wait in a kernel, or all hosts wait at sockets",
        lambda rank: len(rank.job.picture.case.nodes) > 1 and rank.job.picture.points_to_network,
    ),
)

STACKS_WEIGHT = 0.7

SEPARATE_WEIGHT = 0.5
"""Of evidence that only separates a rank."""

SHOWN_WEIGHT = 0.0
"""Of the same evidence where it speaks for nothing."""

ONE_CALL = 1
"""The root of a broadcast leaves it first, as may neighbours in a ring, and all meet in the next
call. A rank that is further on counts other calls: one of them has begun to count anew."""

ONE_STEP = 1
"""Neighbours in a ring stall a step apart."""

SENT_BY_ROOT = frozenset({"broadcast", "scatter"})
TAKEN_BY_ROOT = frozenset({"reduce", "gather"})
"""Calls of which one member is the root. Logs hold no root: two members may have passed another
one each, and then wait for each other while those that were served go on."""

SAME_LINE = Doubt(
    "same_line", 0.6, "no collective log shows whether a rank is at this line in another iteration"
)
RANK_DIFFERS = Doubt(
    "rank_differs", CANDIDATE, "something measured separates a rank from the others", halves=True
)
MAY_BE_UNRELATED = Doubt(
    "may_be_unrelated",
    CANDIDATE,
    "what separates {suspects} from the others may have another reason",
)
SOME_LEFT = Doubt(
    "some_left", 0.7, "some ranks have left the call, so the others may wait for something else"
)
CALL_QUEUED = Doubt(
    "call_queued",
    CANDIDATE,
    "one rank may not have begun the call, and that rank would be the cause",
)
LOG_HAS_HOLE = Doubt(
    "log_has_hole", CANDIDATE, "a collective log does not show whether some call is over"
)
CALLED_LESS = Doubt(
    "called_less",
    CANDIDATE,
    "some ranks have made fewer calls, and their stacks show no wait for ranks",
)
ALSO_HELD_UP = Doubt(
    "also_held_up", CANDIDATE, "the ranks in this call also wait for a rank in another call"
)
COUNTS_APART = Doubt(
    "counts_apart", CANDIDATE, "some ranks are several calls ahead, and may count other calls"
)
ROOTS_MAY_DIFFER = Doubt(
    "roots_may_differ", CANDIDATE, "ranks that passed different roots would wait in the same way"
)

COMPARE_ROOTS = "compare the root (src / dst) that each rank passed"
ASK_FOR_ROOT = f"{COMPARE_ROOTS}: the collective log does not contain it"
LOOK_AT_NETWORK = (
    "check the network between the ranks: link state and error counters of network cards and "
    "switches, NVLink, subnet or fabric manager, firewalls"
)
COMPARE_GPUS = (
    "compare the GPUs of all ranks with `nvidia-smi` on each node: one that alone works, or alone "
    "is idle, holds up the job"
)
COMPARE_THREADS = (
    "compare the stacks of all ranks, in the evidence: a rank that alone is in another call holds "
    "up the job"
)


def find(picture: Picture) -> Accusation | None:
    """Accuse no rank: none holds up the job, where that is known of every live rank."""
    if not do_all_wait(picture) or any(_has_other_reason(item) for item in picture.live):
        return None
    if picture.graph is not None and picture.graph.points:
        return _find_by_logs(picture)
    return _find_by_stacks(picture)


def _has_other_reason(position: Position) -> bool:
    """Return whether it waits only by inference, or for the kernel rather than for ranks."""
    held = position.is_frozen or position.state is ProcessState.UNINTERRUPTIBLE
    return position.presumed or held


def find_separated(picture: Picture, cause: Cause) -> Accusation | None:
    """Accuse the ranks that the strongest evidence separates, if `cause` is its likeliest cause.

    They are candidates: evidence that is sure enough has a cause of its own. Links do so always.
    """
    found = [
        each
        for each in picture.deciding_separations
        if each.cause is not None and each.cause is not Cause.FABRIC_FAULT
    ]
    if not found or found[0].cause is not cause:
        return None
    first = found[0]
    alike = [each for each in found if each.ranks == first.ranks]
    return Accusation(
        cause=cause,
        tier=Tier.PROGRESS,
        suspects=first.ranks,
        reasons=tuple(_separates(each, SEPARATE_WEIGHT) for each in alike),
        doubts=(MAY_BE_UNRELATED,),
        why=lambda _: f"waits like the others, but {first.text}",
        advice=(CHECK_SEPARATED, DUMP_THREADS),
    )


def _separates(found: Separation, weight: float) -> Reason:
    return Reason("difference", weight, ranks_of(found.ranks), found.text)


def _find_by_logs(picture: Picture) -> Accusation | None:
    assert picture.graph is not None
    assert picture.collective_logs is not None
    ends = picture.graph.ends
    if any(end.kind is not EndKind.POINT for end in ends) or picture.collective_logs.advancing:
        return None
    if len(picture.graph.blocked_in) < len(picture.live):
        return None
    # A call that is only queued may have not begun on one device: then that one holds up the job.
    certain = all(end.certain for end in ends)
    points = [point for end in ends for point in end.points if point.group is not None]
    left, ahead = _find_left(picture.collective_logs, points)
    possible = (
        (SOME_LEFT, bool(left)),
        (CALL_QUEUED, not certain),
        (CALLED_LESS, any(_has_called_less(picture, p) for p in points)),
        (ALSO_HELD_UP, _are_held_up_elsewhere(picture.graph, points)),
        (COUNTS_APART, ahead > ONE_CALL),
        (ROOTS_MAY_DIFFER, any(_may_differ_in_root(p, left) for p in points)),
    )
    why_not = [doubt for doubt, holds in possible if holds]
    weight = LOG_WEIGHT if certain else CALLED_WEIGHT
    text = _write_entered(ends[0].points[0], left, certain=certain)
    entered = Reason("records", weight, ends[0].ranks, text)
    has_root = any(point.operation in SENT_BY_ROOT | TAKEN_BY_ROOT for point in points)
    return _accuse(
        picture,
        Tier.WAIT_FOR,
        (entered, same_call_reason(picture, STACKS_WEIGHT)),
        why_not,
        has_root=has_root,
        compare_roots=has_root and bool(left),
    )


def _may_differ_in_root(point: WaitPoint, left: Sequence[int]) -> bool:
    """Return whether ranks with two roots explain as well as a network which have left a call.

    Two that each take themselves for the root both stay. A cut network keeps the root no longer
    than those it sends to: usually the first member, and if that one is out nothing speaks against
    the network.
    """
    assert point.group is not None
    members = frozenset(point.group.members)
    if not members.intersection(left) or len(point.waiting) < 2:
        return False
    if point.operation in SENT_BY_ROOT:
        return point.group.members[0] not in left
    return point.operation in TAKEN_BY_ROOT


def _are_held_up_elsewhere(graph: WaitGraph, points: Sequence[WaitPoint]) -> bool:
    """Return whether all ranks in some call also wait for a rank that is missing in another call.

    That call explains where they are. The first one may be over, and its record not show it.
    """
    held_up = {rank for point in graph.points if point.missing for rank in point.waiting}
    return any(held_up.issuperset(point.waiting) for point in points)


def _has_called_less(picture: Picture, point: WaitPoint) -> bool:
    """Return whether a rank that has called less is at another place than those further on.

    Its stack shows no wait for ranks. So it may have left its last call, which its record does not
    show.
    """
    assert point.group is not None
    assert picture.collective_logs is not None
    by_digest = picture.collective_logs.by_digest
    places: dict[int, set[str]] = {}
    for digest, ranks in picture.collective_logs.in_group[point.group.id].items():
        found = places.setdefault(by_digest[digest].called, set())
        found.update(_place_of(picture.by_rank[rank]) for rank in ranks)
    most = max(places)
    for called, own in places.items():
        here = own - places[most] if called < most else set()
        waiting = (picture.by_rank[rank] for rank in point.waiting if here)
        if any(_place_of(item) in here and not _shows_wait(item) for item in waiting):
            return True
    return False


def _place_of(position: Position) -> str:
    return position.stack.digest if position.stack is not None else ""


def _shows_wait(position: Position) -> bool:
    return position.waits_for_device or position.frame_class.traits.may_be_collective


def _find_left(logs: CollectiveLogs, points: Sequence[WaitPoint]) -> tuple[tuple[int, ...], int]:
    """Find ranks for which a call is over that others are still in, and how many calls ago."""
    left: set[int] = set()
    ahead = 0
    for point in points:
        assert point.group is not None
        for digest, ranks in logs.in_group[point.group.id].items():
            beyond = logs.by_digest[digest].count_over(point.number)
            if beyond > 0:
                left.update(ranks)
                ahead = max(ahead, beyond)
    return tuple(sorted(left)), ahead


def _find_by_stacks(picture: Picture) -> Accusation | None:
    live = picture.live
    sites = {(item.reading and item.reading.what, site_of(item)) for item in live}
    steps = [item.step for item in live if item.step is not None]
    if len(sites) > 1 or not all(item.unchanged for item in live):
        return None
    if any(item.frame_class is not FrameClass.COLLECTIVE for item in live):
        return None
    if len(steps) < len(live) or max(steps) - min(steps) > ONE_STEP:
        return None
    # Hosts run ahead of their devices, so that the line of a host does not show the call.
    is_queued = picture.uses_devices or any(picture.gpu_use(item.rank) for item in live)
    why_not = [CALL_QUEUED if is_queued else SAME_LINE]
    logs = picture.collective_logs
    if logs is not None and any(logs.of_rank.values()):
        why_not.append(LOG_HAS_HOLE)  # no log shows the call that all stacks show
    return _accuse(picture, Tier.STACKS, (same_call_reason(picture, STACKS_WEIGHT),), why_not)


def _write_entered(point: WaitPoint, left: Sequence[int], *, certain: bool) -> str:
    did = "entered" if certain else "called"
    stays = f"only {name_ranks(left)} left it" if left else "no member has left it"
    begun = "" if certain else "; whether the call has begun is not recorded"
    return f"all members have {did} {name_point(point)}{begun}; {stays}"


def _accuse(
    picture: Picture,
    tier: Tier,
    reasons: tuple[Reason, ...],
    why_not: Sequence[Doubt],
    *,
    has_root: bool = False,
    compare_roots: bool = False,
) -> Accusation:
    if picture.holed and LOG_HAS_HOLE not in why_not:
        why_not = [*why_not, LOG_HAS_HOLE]
    is_known = all(doubt.ceiling > CANDIDATE for doubt in why_not)
    deciding = picture.deciding_separations
    points_to_network = is_known and not deciding and picture.points_to_network
    # Where nothing measured points to the network: calls may be queued on GPUs, or not.
    compare = COMPARE_GPUS if CALL_QUEUED in why_not else COMPARE_THREADS
    separated = (CHECK_SEPARATED, DUMP_THREADS) if deciding else ()
    waited = (
        f"all {count_ranks(len(picture.live))} have waited in {name_waits(picture.waiting)} for "
        f"{format_duration(picture.case.stalled_for_s)}"
    )
    behind = (
        "no rank is behind the others: check the network between them"
        if points_to_network
        else "nothing measured shows a rank that is behind the others"
    )
    return Accusation(
        cause=Cause.SYMMETRIC_HANG,
        tier=tier,
        reasons=(*reasons, *(_separates(each, SHOWN_WEIGHT) for each in picture.separations)),
        doubts=(
            *why_not,
            *((RANK_DIFFERS,) if deciding else ()),
            *((STACK_MISSING,) if picture.unseen else ()),
        ),
        summary=join_sentences(waited, behind, COMPARE_ROOTS if compare_roots else ""),
        advice=(
            *separated,
            *((ASK_FOR_ROOT,) if has_root else ()),
            LOOK_AT_NETWORK if points_to_network else compare,
            TRY_OTHER_NODES,
        ),
        witnesses=deciding[0].ranks if deciding else (),
    )
