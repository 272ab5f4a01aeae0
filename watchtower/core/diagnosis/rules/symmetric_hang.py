"""Everybody has entered the same collective and it does not end: no rank is to blame.

The fault is below the ranks then: links, switches, network cards, the library. Accusing one of them
would send people to the wrong machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from watchtower.core.diagnosis.evidence_wording import MAX_WAITS, name_wait, name_waits
from watchtower.core.diagnosis.finding import Finding, Tier
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Place, Position
from watchtower.core.diagnosis.waits.callsites import site_of
from watchtower.core.diagnosis.waits.collective_logs import CollectiveLogs
from watchtower.core.diagnosis.waits.graph import EndKind
from watchtower.core.diagnosis.waits.points import WaitPoint
from watchtower.core.diagnosis.waits.wording import RECORD_WEIGHT, UNSURE_WEIGHT, name_point
from watchtower.core.diagnosis.weighing import DOUBT_CEILING, MISSING_CEILING, weigh
from watchtower.core.phrases import clean, join_words, say_duration
from watchtower.core.ranksets import count_ranks, format_ranks, name_ranks
from watchtower.core.reading.frames import FrameClass
from watchtower.wire.report import ProcessState
from watchtower.wire.verdict import Cause, Evidence

STACKS_CEILING = 0.7
"""Without records: one of the ranks may be in the same line of another iteration."""

STACKS_WEIGHT = 0.7

LEFT_CEILING = 0.7
"""Some have left the call: a link of those inside is at fault, or they wait for something else."""

ONE_CALL = 1
"""The root of a broadcast leaves it first, as may neighbours in a ring, and all meet in the next
call. Who is further on counts other calls: one of them has begun to count anew."""

ONE_STEP = 1
"""Neighbours in a ring stall a step apart."""

SENT_BY_ROOT = frozenset({"broadcast", "scatter"})
TAKEN_BY_ROOT = frozenset({"reduce", "gather"})
"""Calls of which one member is the root. Records hold no root: two members may have passed another
one each, and then wait for each other while whoever was served goes on."""

COMPARE_ROOTS = "compare the root (src / dst) that each rank passed"
ASK_ROOT = f"{COMPARE_ROOTS}: the records do not hold it"

ADVICE = "look at the network between them"

NEXT_STEPS = (
    "no rank keeps the others: look at what connects them (link state and error counters of "
    "network cards and switches, NVLink, subnet or fabric manager, firewalls)",
    "restarting the job on other nodes tells the fabric from the program",
)


def find(picture: Picture) -> Finding | None:
    """Say that nobody is the laggard, where that is known of every live rank."""
    live = picture.live
    if len(live) < 2 or len(picture.waiting) < len(live) or picture.split:
        return None
    if len(live) < len(picture.by_rank) or any(_has_other_reason(item) for item in live):
        return None
    if picture.graph is not None and picture.graph.points:
        return _find_by_records(picture)
    return _find_by_stacks(picture)


def _has_other_reason(position: Position) -> bool:
    """Tell whether it waits only by inference, or for the kernel rather than for ranks."""
    held = position.is_frozen or position.state is ProcessState.UNINTERRUPTIBLE
    return position.presumed or held


def _find_by_records(picture: Picture) -> Finding | None:
    assert picture.graph is not None
    assert picture.records is not None
    ends = picture.graph.ends
    if any(end.kind is not EndKind.POINT for end in ends) or picture.records.advancing:
        return None
    if len(picture.graph.blocked_in) < len(picture.live):
        return None
    first = ends[0]
    # A call that is only queued may have not begun on one device: then that one is the laggard.
    certain = all(end.certain for end in ends)
    did = "entered" if certain else "called (whether it has begun is not recorded)"
    points = [point for end in ends for point in end.points if point.group is not None]
    left, ahead = _find_left(picture.records, points)
    stays = f"{name_ranks(left)} left it, others did not" if left else "none has left it"
    evidence = Evidence(
        source="records",
        text=f"all members have {did} {name_point(first.points[0])} and {stays}",
        ranks=format_ranks(first.ranks),
        weight=RECORD_WEIGHT if certain else UNSURE_WEIGHT,
    )
    ceiling = LEFT_CEILING if left else 1.0
    if not certain or ahead > ONE_CALL or any(_may_differ_in_root(p, left) for p in points):
        ceiling = DOUBT_CEILING
    told = (evidence, *_stack_evidence(picture))
    if not any(_has_root(point) for point in points):
        return _write(picture, told, ceiling)
    advice = f"{ADVICE}, and {COMPARE_ROOTS}" if left else ADVICE
    return _write(picture, told, ceiling, advice, (ASK_ROOT, *NEXT_STEPS))


def _has_root(point: WaitPoint) -> bool:
    return point.operation in SENT_BY_ROOT | TAKEN_BY_ROOT


def _may_differ_in_root(point: WaitPoint, left: Sequence[int]) -> bool:
    """Tell whether ranks with two roots explain as well as a network who has left a call.

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


def _find_left(records: CollectiveLogs, points: Sequence[WaitPoint]) -> tuple[tuple[int, ...], int]:
    """Find ranks for which a call is over that others are still in, and how many calls ago."""
    left: set[int] = set()
    ahead = 0
    for point in points:
        assert point.group is not None
        for digest, ranks in records.in_group[point.group.id].items():
            beyond = records.logs[digest].completed - point.number + 1
            if beyond > 0:
                left.update(ranks)
                ahead = max(ahead, beyond)
    return tuple(sorted(left)), ahead


def _find_by_stacks(picture: Picture) -> Finding | None:
    live = picture.live
    sites = {(item.reading and item.reading.what, site_of(item)) for item in live}
    steps = [item.step for item in live if item.step is not None]
    if len(sites) > 1 or not all(item.unchanged for item in live):
        return None
    if any(item.frame_class is not FrameClass.COLLECTIVE for item in live):
        return None
    if len(steps) < len(live) or max(steps) - min(steps) > ONE_STEP:
        return None
    return _write(picture, _stack_evidence(picture), STACKS_CEILING)


def _stack_evidence(picture: Picture) -> tuple[Evidence, ...]:
    live = picture.live
    places = _sort_by_place(live)
    stays = ", the same in two dumps" if all(item.unchanged for item in live) else ""
    if len(places) == 1:
        text = f"all {count_ranks(len(live))} wait in {next(iter(places))}"
    else:
        text = "they wait: " + join_words(
            [f"{name_ranks(i.rank for i in items)} in {place}" for place, items in places.items()]
        )
    return (
        Evidence(
            source="stacks",
            text=f"{text}{stays}",
            ranks=format_ranks(item.rank for item in live),
            weight=STACKS_WEIGHT,
        ),
    )


def _sort_by_place(live: Sequence[Position]) -> dict[str, list[Position]]:
    """Sort by call and line, where most are first; all behind the last place told are one."""
    by_place: dict[str, list[Position]] = defaultdict(list)
    for item in live:
        at = f" at {clean(item.reading.what_at)}" if item.reading else ""
        by_place[f"{name_wait([item])}{at}"].append(item)
    places = sorted(by_place.items(), key=lambda each: (-len(each[1]), each[1][0].rank))
    told, rest = places[:MAX_WAITS], [item for _, items in places[MAX_WAITS:] for item in items]
    return dict(told) | ({"other calls": rest} if rest else {})


def _write(
    picture: Picture,
    evidence: tuple[Evidence, ...],
    ceiling: float,
    advice: str = ADVICE,
    next_steps: tuple[str, ...] = NEXT_STEPS,
) -> Finding:
    if picture.at(Place.UNSEEN):
        ceiling = min(ceiling, MISSING_CEILING)
    stalled = say_duration(picture.case.stalled_for_s)
    return Finding(
        cause=Cause.SYMMETRIC_HANG,
        tier=Tier.WAIT_FOR if evidence[0].source == "records" else Tier.STACKS,
        confidence=weigh(evidence, ceiling=ceiling),
        suspects=(),
        summary=(
            f"no laggard: all {count_ranks(len(picture.live))} have been inside "
            f"{name_waits(picture.waiting)} for {stalled}; {advice}"
        ),
        evidence=evidence,
        next_steps=next_steps,
    )
