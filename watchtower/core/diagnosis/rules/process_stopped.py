"""A rank's process is stopped (state T): SIGSTOP or job control.

When every rank is stopped somebody suspended the job; that is a status, not a fault.
"""

from __future__ import annotations

from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.held_ranks import accuse_held, is_suspended
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Place
from watchtower.core.phrases import clean
from watchtower.wire.report import ProcessState
from watchtower.wire.verdict import Cause


def find(picture: Picture) -> Finding | None:
    """Accuse stopped ranks while others are not stopped."""
    stopped = [item for item in picture.at(Place.CANNOT_RUN) if item.state is ProcessState.STOPPED]
    if not stopped or is_suspended(picture):
        return None
    first = stopped[0].evidence
    node = clean(first.node, 64) or "its node"
    return accuse_held(
        picture,
        stopped,
        cause=Cause.PROCESS_STOPPED,
        state="is stopped (state T, SIGSTOP or job control)",
        weight=0.9,
        next_steps=(
            f"on {node}: `kill -CONT {first.pid}` lets it go on; nothing is lost",
            f"find who stopped it: a shell's Ctrl-Z, a scheduler's preemption, a tool on {node}",
        ),
    )
