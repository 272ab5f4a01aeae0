"""Ranks that cannot run, whatever their code does: stopped, traced, frozen, in state D.

One sample in state D is ordinary disk access; two dumps and the report must agree. A frozen cgroup
shows as state D in version 1, as ordinary sleep in version 2, and in new kernels in the very call
it was caught in: the agent asks the cgroup. If all ranks are held, the job is suspended: that is a
status, not a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from watchtower.diagnosis import doubts
from watchtower.diagnosis.accusation import MAX_QUOTED, Accusation, Reason, ReasonKind, Tier
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Place, Position
from watchtower.diagnosis.reasons import peers_reason, stack_reason, step_reason
from watchtower.diagnosis.subjects import Held
from watchtower.evidence.mounts import find_mounts, is_remote
from watchtower.wire.report import ProcessState
from watchtower.wire.verdict import Cause


@dataclass(frozen=True, slots=True)
class HeldState:
    """One row of the table."""

    cause: Cause
    holds: Callable[[Position], bool]
    weight: float
    advice: tuple[str, ...]


def _is_stopped(position: Position) -> bool:
    return position.place is Place.CANNOT_RUN and position.state is ProcessState.STOPPED


def _is_traced(position: Position) -> bool:
    return position.place is Place.CANNOT_RUN and position.state is ProcessState.TRACED


def _is_watched(position: Position) -> bool:
    attached = position.kernel.tracer_pid != 0 and position.state is not ProcessState.STOPPED
    return attached and position.place in (Place.ELSEWHERE, Place.UNSEEN) and not position.moving


def _is_frozen(position: Position) -> bool:
    return position.is_frozen


def _stays_uninterruptible(position: Position) -> bool:
    return position.stays_uninterruptible and not position.waits


_TRACED = ("detach_tracer", "not_the_code")

STATES = (
    HeldState(Cause.PROCESS_STOPPED, _is_stopped, 0.9, ("continue_it", "find_who_stopped")),
    HeldState(Cause.PROCESS_TRACED, _is_traced, 0.9, _TRACED),
    # A tracer that is attached but lets the process run may only watch.
    HeldState(Cause.PROCESS_TRACED, _is_watched, 0.7, _TRACED),
    HeldState(Cause.PROCESS_FROZEN, _is_frozen, 0.9, ("find_cgroup", "no_signal_reaches")),
    HeldState(
        Cause.UNINTERRUPTIBLE_IO, _stays_uninterruptible, 0.85, ("blocked", "restart_without")
    ),
)
"""If a cause has several rows, the first that holds any rank counts."""

BLOCKED_ON = frozenset({"fuse", "nfs", "gpu", "io", "child"})
"""Classes of kernel waits that have advice of their own, `blocked_fuse` and so on."""


def find_held(cause: Cause, picture: Picture) -> Accusation | None:
    """Accuse the ranks that are held in this way while others are not."""
    for row in STATES:
        if row.cause is cause:
            held = [item for item in picture.live if row.holds(item)]
            if held:
                return None if _is_suspended(cause, picture, held) else _accuse(row, picture, held)
    return None


def _is_suspended(cause: Cause, picture: Picture, held: Sequence[Position]) -> bool:
    if cause is Cause.PROCESS_FROZEN:
        return len(held) == len(picture.live)
    return cause is not Cause.UNINTERRUPTIBLE_IO and picture.is_suspended


def _accuse(row: HeldState, picture: Picture, held: Sequence[Position]) -> Accusation:
    reasons: list[Reason] = []
    for item in held[:MAX_QUOTED]:
        reasons.append(
            Reason(ReasonKind.HELD, row.weight, (item.rank,), Held(row.cause, item, held[0]))
        )
        reasons += step_reason(picture, item)
        reasons += stack_reason(item, 0.0)  # where a held process happens to be proves nothing
    advice = row.advice
    if advice[0] == "blocked":
        advice = (_advise_blocked(held[0]), *advice[1:])
    is_shared = row.cause is Cause.UNINTERRUPTIBLE_IO and _is_every_node(picture, held)
    return Accusation(
        cause=row.cause,
        tier=Tier.CANNOT_ANSWER,
        suspects=tuple(held),
        reasons=(*reasons, *peers_reason(picture, held)),
        doubts=(doubts.ALL_BLOCKED,) if is_shared else (),
        advice=advice,
    )


def _advise_blocked(first: Position) -> str:
    wait_class = first.wait.wait_class
    mounts = find_mounts(first.kernel, wait_class)
    if len(mounts) > 1 and is_remote(mounts[0]):
        return "blocked_mounts"
    return f"blocked_{wait_class}" if wait_class in BLOCKED_ON else "blocked"


def _is_every_node(picture: Picture, held: Sequence[Position]) -> bool:
    return len(held) == len(picture.live) and len({item.evidence.node for item in held}) > 1
