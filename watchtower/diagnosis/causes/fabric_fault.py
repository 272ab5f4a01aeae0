"""All ranks wait for each other, none is behind, and a link between them failed.

The stacks alone show a symmetric hang. The state of a link, or its counters of errors, names the
node and the link to check. No rank is to blame.
"""

from __future__ import annotations

from collections.abc import Iterator

from watchtower.diagnosis import doubts
from watchtower.diagnosis.accusation import MAX_QUOTED, Accusation, Reason, ReasonKind, Tier
from watchtower.diagnosis.doubts import Doubt
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.reasons import ranks_of
from watchtower.diagnosis.separation import do_all_wait
from watchtower.diagnosis.subjects import FailedLinks, Ranks
from watchtower.diagnosis.waits.graph import EndKind
from watchtower.evidence.gpus import GpuPattern
from watchtower.evidence.links import LinkFault
from watchtower.wire.report import ProcessState
from watchtower.wire.verdict import Cause

MAY_WAIT = (GpuPattern.SPINNING, GpuPattern.FROZEN)
"""Patterns of a GPU that may wait for a link. Counters that do not change show nothing about its
work. A GPU that works or has no work explains the stall by itself."""

STATE_WEIGHT, COUNTER_WEIGHT, WAIT_WEIGHT = 0.85, 0.6, 0.5


def find(picture: Picture) -> Accusation | None:
    """Accuse no rank where all wait, and name the links that failed around the stall."""
    faults = picture.link_faults
    if not faults or not _do_all_wait(picture):
        return None
    live = picture.live
    reasons = [
        Reason(
            ReasonKind.LINK, STATE_WEIGHT if each.by_state else COUNTER_WEIGHT, ranks_of(live), each
        )
        for each in faults[:MAX_QUOTED]
    ]
    waits = Reason(ReasonKind.SAME_CALL, WAIT_WEIGHT, ranks_of(live), Ranks(tuple(live)))
    return Accusation(
        cause=Cause.FABRIC_FAULT,
        # A link that was lost explains every wait. Errors alone explain no more than the waits do.
        tier=Tier.CANNOT_ANSWER if faults[0].by_state else Tier.WAIT_FOR,
        reasons=(*reasons, waits),
        doubts=tuple(_find_doubts(faults[0])),
        advice=("check_nvlink" if faults[0].is_nvlink else "check_link_state", "try_other_nodes"),
        about=FailedLinks(faults),
    )


def _find_doubts(first: LinkFault) -> Iterator[Doubt]:
    if not first.by_state:
        yield doubts.LINK_ERRORS_ALONE
    elif not first.is_used:
        yield doubts.LINK_MAY_BE_UNUSED


def _do_all_wait(picture: Picture) -> bool:
    """Return whether every rank is known to wait for other ranks, and none holds up the others."""
    if not do_all_wait(picture):
        return False
    for item in picture.live:
        held = item.is_frozen or item.state is ProcessState.UNINTERRUPTIBLE
        use = picture.gpu_use(item.rank)
        if item.presumed or held or (use is not None and use.pattern not in MAY_WAIT):
            return False
    graph, logs = picture.graph, picture.collective_logs
    if graph is None or logs is None:
        return True
    held_up = any(point.held_up_by for end in graph.ends for point in end.points)
    return not (held_up or logs.advancing) and all(e.kind is EndKind.POINT for e in graph.ends)
