"""A rank's process ended by a signal or an exit code, and no exception of its own is known."""

from __future__ import annotations

from watchtower.core.diagnosis.deaths.death import Death
from watchtower.core.diagnosis.deaths.wording import accuse_dead
from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.phrases import clean
from watchtower.core.reading.exits import DeathKind
from watchtower.wire.verdict import Cause

KINDS = frozenset(
    {
        DeathKind.CRASH,
        DeathKind.EXIT_CODE,
        DeathKind.KILLED,
        DeathKind.EXIT_ONE,
        DeathKind.VANISHED,
        DeathKind.ABORTED,
        DeathKind.TERMINATED,
    }
)

ADVICE = {
    DeathKind.CRASH: "look for a core dump and the faulthandler output of {rank} on {node}",
    DeathKind.KILLED: "find who sent SIGKILL on {node}: the kernel log and the scheduler's log",
    DeathKind.ABORTED: "read the last lines of the output of {rank} on {node}: what gave up there",
    DeathKind.TERMINATED: "find who sent the signal on {node}: the scheduler's log, the launcher's",
}


def find(picture: Picture) -> Finding | None:
    """Accuse the ranks whose deaths explain the others."""
    culprits = picture.first_hand
    if not culprits or culprits[0].kind not in KINDS:
        return None
    return accuse_dead(
        picture,
        culprits,
        cause=Cause.PROCESS_DIED,
        next_steps=(_advise(culprits[0]), "restart the job from its last checkpoint"),
    )


def _advise(death: Death) -> str:
    advice = ADVICE.get(death.kind, "read the last lines of the output of {rank} on {node}")
    return advice.format(rank=f"rank {death.rank}", node=clean(death.node, 64) or "its node")
