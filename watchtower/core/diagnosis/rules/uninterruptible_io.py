"""A rank's main thread is in uninterruptible sleep (state D) and stays there.

One look at D is ordinary disk access; two dumps and the report must agree.
"""

from __future__ import annotations

from watchtower.core.case import Case
from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.held_ranks import accuse_held
from watchtower.core.diagnosis.standing import Place, Standing
from watchtower.core.diagnosis.standings import Standings
from watchtower.core.diagnosis.weighing import DOUBT_CEILING
from watchtower.core.text import clean
from watchtower.wire.report import ProcessState
from watchtower.wire.verdict import Cause

ADVICE = {
    "fuse": "the server process of that FUSE mount on {node} does not answer: look at it first",
    "nfs": "test that mount on {node} and its server: `stat` of the path with a timeout",
    "gpu": "read the kernel log of {node} for Xid lines; the driver holds the process",
    "io": "read the kernel log of {node} for disk errors, look at the device's queue",
    "child": "a child process of the rank has not run exec yet: look at it on {node}",
}


def find(case: Case, standings: Standings) -> Finding | None:
    """Accuse ranks that stay in D."""
    stuck = [item for item in standings.live if _stays_uninterruptible(item)]
    if not stuck:
        return None
    first = stuck[0]
    node = clean(first.evidence.node, 64) or "its node"
    advice = ADVICE.get(
        first.wait.wait_class, "read the kernel log of {node} and test the storage it uses"
    )
    return accuse_held(
        standings,
        stuck,
        cause=Cause.UNINTERRUPTIBLE_IO,
        state=f"is in uninterruptible sleep (state D){_say_what(first)}",
        weight=0.85,
        ceiling=DOUBT_CEILING if _is_everyone(standings, stuck) else 1.0,
        next_steps=(
            advice.format(node=node),
            f"SIGKILL cannot end pid {first.evidence.pid} until the call returns; "
            "a restart needs another node",
        ),
    )


def _stays_uninterruptible(standing: Standing) -> bool:
    seen = [dump.kernel.state for dump in standing.evidence.dumps[-2:]] + [standing.state]
    return (
        not standing.is_frozen
        and len(seen) > 2
        and all(state is ProcessState.UNINTERRUPTIBLE for state in seen)
        and standing.place is not Place.WAITING
    )


def _is_everyone(standings: Standings, stuck: list[Standing]) -> bool:
    return len(stuck) == len(standings.live) and len({item.evidence.node for item in stuck}) > 1


def _say_what(standing: Standing) -> str:
    return f", {standing.wait.says}" if standing.wait.says else ""
