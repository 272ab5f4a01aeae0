"""A rank's process is stopped (state T): SIGSTOP or job control.

When every rank is stopped somebody suspended the job; that is a status, not a fault.
"""

from __future__ import annotations

from watchtower.core.case import Case
from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.held_ranks import accuse_held, is_suspended
from watchtower.core.diagnosis.standing import Place
from watchtower.core.diagnosis.standings import Standings
from watchtower.core.text import clean
from watchtower.wire.report import ProcessState
from watchtower.wire.verdict import Cause


def find(case: Case, standings: Standings) -> Finding | None:
    """Accuse stopped ranks while others are not stopped."""
    stopped = [item for item in standings.at(Place.HELD) if item.state is ProcessState.STOPPED]
    if not stopped or is_suspended(standings):
        return None
    first = stopped[0].evidence
    node = clean(first.node, 64) or "its node"
    return accuse_held(
        standings,
        stopped,
        cause=Cause.PROCESS_STOPPED,
        state="is stopped (state T, SIGSTOP or job control)",
        weight=0.9,
        next_steps=(
            f"on {node}: `kill -CONT {first.pid}` lets it go on; nothing is lost",
            f"find who stopped it: a shell's Ctrl-Z, a scheduler's preemption, a tool on {node}",
        ),
    )
