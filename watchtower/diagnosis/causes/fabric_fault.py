"""All ranks wait for each other, none is behind, and a link between them failed.

The stacks alone show a symmetric hang. The state of a link, or its counters of errors, names the
node and the link to check. No rank is to blame.
"""

from __future__ import annotations

from collections.abc import Iterator

from watchtower.diagnosis.accusation import MAX_QUOTED, Accusation, Doubt, Reason, Tier
from watchtower.diagnosis.advice import TRY_OTHER_NODES
from watchtower.diagnosis.domain import Line
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.reasons import ranks_of, same_call_reason
from watchtower.diagnosis.separation import do_all_wait
from watchtower.diagnosis.waits.graph import EndKind
from watchtower.evidence.gpus import GpuPattern
from watchtower.evidence.observed import LinkFault
from watchtower.wire.report import ProcessState
from watchtower.wire.verdict import Cause, Domain
from watchtower.writing.text import clean, format_duration

WHOM = (
    Line(
        Domain.GPU,
        "the link is an NVLink, or an NVSwitch reported an error",
        lambda rank: any(each.is_nvlink for each in rank.job.picture.link_faults[:1]),
    ),
    Line(Domain.NETWORK),
)

MAY_WAIT = (GpuPattern.SPINNING, GpuPattern.FROZEN)
"""Patterns of a GPU that may wait for a link. Counters that do not change show nothing about its
work. A GPU that works or has no work explains the stall by itself."""

STATE_WEIGHT, COUNTER_WEIGHT, WAIT_WEIGHT = 0.85, 0.6, 0.5

LINK_ERRORS_ALONE = Doubt("link_errors_alone", 0.7, "the link has errors, but was not lost")
LINK_MAY_BE_UNUSED = Doubt(
    "link_may_be_unused", 0.85, "it is not known whether the job uses this link"
)

CHECK_LINK_STATE = (
    "check the link {link} of {node}: its cable and its switch port; `ip -s link` and `ibstat` "
    "show its state and errors"
)
CHECK_NVLINK = (
    "check NVLink and NVSwitch of {node} ({link}): `nvidia-smi nvlink --status`, and the fabric "
    "manager"
)


def find(picture: Picture) -> Accusation | None:
    """Accuse no rank where all wait, and name the links that failed around the stall."""
    faults = picture.link_faults
    if not faults or not _do_all_wait(picture):
        return None
    first, ranks = faults[0], ranks_of(picture.live)
    return Accusation(
        cause=Cause.FABRIC_FAULT,
        # A link that was lost explains every wait. Errors alone explain no more than the waits do.
        tier=Tier.CANNOT_ANSWER if first.by_state else Tier.WAIT_FOR,
        reasons=(
            *(
                Reason(
                    "fabric", STATE_WEIGHT if each.by_state else COUNTER_WEIGHT, ranks, _write(each)
                )
                for each in faults[:MAX_QUOTED]
            ),
            same_call_reason(picture, WAIT_WEIGHT),
        ),
        doubts=tuple(_find_doubts(first)),
        summary=f"no rank is to blame: {_write(first)}",
        advice=(CHECK_NVLINK if first.is_nvlink else CHECK_LINK_STATE, TRY_OTHER_NODES),
        names={"node": clean(first.node, 64), "link": clean(first.link, 64)},
        quoted=tuple(each.observation for each in faults),
    )


def _write(fault: LinkFault) -> str:
    """Return "gpu-042, 12 s ago: eth1 lost its link and does not have it now"."""
    ago = format_duration(fault.observation.age_s)
    return f"{clean(fault.node, 64)}, {ago} ago: {clean(fault.observation.text, 160)}"


def _find_doubts(first: LinkFault) -> Iterator[Doubt]:
    if not first.by_state:
        yield LINK_ERRORS_ALONE
    elif not first.is_used:
        yield LINK_MAY_BE_UNUSED


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
