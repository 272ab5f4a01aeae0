"""A rank's main thread is in uninterruptible sleep (state D) and stays there.

One look at D is ordinary disk access; two dumps and the report must agree.
"""

from __future__ import annotations

from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.held_ranks import accuse_held
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Place, Position
from watchtower.core.diagnosis.weighing import DOUBT_CEILING
from watchtower.core.phrases import clean
from watchtower.wire.report import ProcessState
from watchtower.wire.verdict import Cause

ADVICE = {
    "fuse": "the server process of that FUSE mount on {node} does not answer: look at it first",
    "nfs": "test that mount on {node} and its server: `stat` of the path with a timeout",
    "gpu": "read the kernel log of {node} for Xid lines; the driver holds the process",
    "io": "read the kernel log of {node} for disk errors, look at the device's queue",
    "child": "a child process of the rank has not run exec yet: look at it on {node}",
}


def find(picture: Picture) -> Finding | None:
    """Accuse ranks that stay in D."""
    stuck = [item for item in picture.live if _stays_uninterruptible(item)]
    if not stuck:
        return None
    first = stuck[0]
    node = clean(first.evidence.node, 64) or "its node"
    advice = ADVICE.get(
        first.wait.wait_class, "read the kernel log of {node} and test the storage it uses"
    )
    return accuse_held(
        picture,
        stuck,
        cause=Cause.UNINTERRUPTIBLE_IO,
        state=f"is in uninterruptible sleep (state D){_say_what(first)}",
        weight=0.85,
        ceiling=DOUBT_CEILING if _is_everyone(picture, stuck) else 1.0,
        next_steps=(
            advice.format(node=node),
            f"SIGKILL cannot end pid {first.evidence.pid} until the call returns; "
            "a restart needs another node",
        ),
    )


def _stays_uninterruptible(position: Position) -> bool:
    seen = [dump.kernel.state for dump in position.evidence.dumps[-2:]] + [position.state]
    return (
        not position.is_frozen
        and len(seen) > 2
        and all(state is ProcessState.UNINTERRUPTIBLE for state in seen)
        and position.place is not Place.INSIDE
    )


def _is_everyone(picture: Picture, stuck: list[Position]) -> bool:
    return len(stuck) == len(picture.live) and len({item.evidence.node for item in stuck}) > 1


def _say_what(position: Position) -> str:
    return f", {position.wait.says}" if position.wait.says else ""
