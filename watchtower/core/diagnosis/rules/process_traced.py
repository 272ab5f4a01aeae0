"""Another process traces a rank: a debugger or strace. watchtower itself never attaches."""

from __future__ import annotations

from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.held_ranks import accuse_held, is_suspended
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Place, Position
from watchtower.core.phrases import clean
from watchtower.wire.report import ProcessState
from watchtower.wire.verdict import Cause

HELD_WEIGHT = 0.9
ATTACHED_WEIGHT = 0.7
"""A tracer is attached but lets the process run: it may only watch."""


def find(picture: Picture) -> Finding | None:
    """Accuse ranks that a tracer holds, or watches while they are behind and do not move."""
    traced = [item for item in picture.live if _is_held(item)]
    weight = HELD_WEIGHT
    if not traced:
        traced = [item for item in picture.live if _is_watched(item)]
        weight = ATTACHED_WEIGHT
    if not traced or is_suspended(picture):
        return None
    first = traced[0]
    tracer = _name_tracer(first)
    node = clean(first.evidence.node, 64) or "its node"
    return accuse_held(
        picture,
        traced,
        cause=Cause.PROCESS_TRACED,
        state=f"is traced by {tracer}",
        weight=weight,
        next_steps=(
            f"on {node}: detach or end {tracer}; the rank then goes on",
            "this is no fault of the training code",
        ),
    )


def _is_held(position: Position) -> bool:
    return position.place is Place.CANNOT_RUN and position.state is ProcessState.TRACED


def _is_watched(position: Position) -> bool:
    attached = position.kernel.tracer_pid != 0 and position.state is not ProcessState.STOPPED
    elsewhere = position.place in {Place.ELSEWHERE, Place.UNSEEN}
    return attached and elsewhere and not position.moving


def _name_tracer(position: Position) -> str:
    kernel = position.kernel
    if not kernel.tracer_pid:
        return "another process"
    name = clean(kernel.tracer_name, 64)
    return f"{name} (pid {kernel.tracer_pid})" if name else f"pid {kernel.tracer_pid}"
