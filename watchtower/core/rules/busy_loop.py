"""A rank computes in the user's own code and does not get to the collective."""

from __future__ import annotations

from watchtower.core.accusation import accuse_by_stack, doubt_crowds
from watchtower.core.case import Case
from watchtower.core.crowd import Standings
from watchtower.core.finding import Finding
from watchtower.core.frames import FrameClass
from watchtower.core.standing import Standing
from watchtower.core.testimony import movement_evidence
from watchtower.wire.report import ProcessState
from watchtower.wire.verdict import Cause

FULL_CORE = 0.8
"""CPU use that one spinning thread has when nobody competes for its core."""

SHARED_CORE = 0.2
"""Least CPU use of a spinning thread on a crowded machine, if every look finds it running."""

COMPUTING = frozenset({FrameClass.USER, FrameClass.NONE, FrameClass.OPTIMIZER})

BUSY_WEIGHT = 0.5


def find(case: Case, standings: Standings) -> Finding | None:
    """Accuse the ranks that are on a CPU in user code in every dump."""
    busy = [item for item in standings.behind if _is_busy(item)]
    if not busy:
        return None
    first = busy[0]
    place = first.reading.where if first.reading else "its stack"
    return accuse_by_stack(
        standings,
        busy,
        cause=Cause.BUSY_LOOP,
        says=lambda item: f", using {item.evidence.movement.cpu_cores:.1f} cores",
        extra=[movement_evidence(item, BUSY_WEIGHT) for item in busy[:3]],
        ceiling=doubt_crowds(standings, busy),
        next_steps=(
            f"read the loop around {place}: what ends it, and can this rank's input prevent that?",
            f"`py-spy record --pid {first.evidence.pid}` shows where the time goes",
        ),
    )


def _is_busy(standing: Standing) -> bool:
    if standing.frame_class not in COMPUTING or standing.asleep:
        return False
    cores = standing.evidence.movement.cpu_cores
    states = [dump.kernel.state for dump in standing.evidence.dumps] + [standing.state]
    running = all(state is ProcessState.RUNNING for state in states)
    return cores >= FULL_CORE or (running and cores >= SHARED_CORE)
