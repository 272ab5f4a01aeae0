"""A rank's main thread waits for a lock that no thread of its process will release.

A thread that runs, holds the GIL or is on its way may release it, and then this is not a deadlock.
"""

from __future__ import annotations

from watchtower.core.diagnosis.accusation import accuse_by_stack, doubt_crowds
from watchtower.core.diagnosis.evidence_wording import advise_wait, say_place_of_wait
from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Position, Shape
from watchtower.core.diagnosis.workers import child_evidence, say_child
from watchtower.core.phrases import clean
from watchtower.core.reading.frames import FrameClass
from watchtower.wire.dumps import RankDump
from watchtower.wire.verdict import Cause, Evidence

MEANINGLESS = frozenset({FrameClass.USER, FrameClass.LOCK, FrameClass.NONE, FrameClass.OPTIMIZER})
"""Classes that do not say what the wait is for."""

LOCK_WEIGHT = 0.5


def find(picture: Picture) -> Finding | None:
    """Accuse the ranks that stay at one lock while nothing in their process moves."""
    # Asleep in a futex under the user's line is `irecv(...).wait()`, too: in doubt, an alternative.
    candidates = (picture.sinks, picture.secondary)
    locked = next(filter(None, ([i for i in c if _is_deadlocked(i)] for c in candidates)), None)
    if not locked:
        return None
    first = locked[0]
    node = clean(first.evidence.node, 64) or "its node"
    place = clean(first.reading.where) if first.reading else "its stack"
    return accuse_by_stack(
        picture,
        locked,
        cause=Cause.LOCK_DEADLOCK,
        says=lambda item: f"{say_place_of_wait(item)}{say_child(picture, item)}",
        extra=[
            *(_lock_evidence(item) for item in locked[:3]),
            *child_evidence(picture, locked[:3]),
        ],
        ceiling=doubt_crowds(picture, locked),
        next_steps=(
            advise_wait(first)
            or f"read the code around {place}: which lock is taken there, and is it held by a "
            "caller or by another thread that waits too?",
            f"`py-spy dump --pid {first.evidence.pid}` on {node} shows every thread",
        ),
    )


def _is_deadlocked(position: Position) -> bool:
    waits = position.frame_class in MEANINGLESS and position.wait.wait_class == "lock"
    stays = position.shape is Shape.SAME and position.asleep and not position.moving
    dumps = position.evidence.dumps[-2:]
    kernels = {dump.kernel.syscall or dump.kernel.wchan for dump in dumps}
    return waits and stays and len(kernels) == 1 and not _may_be_released(dumps)


def _may_be_released(dumps: tuple[RankDump, ...]) -> bool:
    others = [
        {(thread.name, thread.digest) for thread in dump.threads if not thread.main}
        for dump in dumps
    ]
    runs = any(
        thread.active or thread.owns_gil
        for dump in dumps
        for thread in dump.threads
        if not thread.main
    )
    return runs or others[0] != others[-1]


def _lock_evidence(position: Position) -> Evidence:
    dump = position.last_dump
    others = len(dump.threads) - 1 if dump else 0
    rest = f"other Python threads that stay too: {others}" if others else "no other Python thread"
    return Evidence(
        source="threads",
        text=f"rank {position.rank}: waits for a lock in both dumps, {rest}",
        ranks=str(position.rank),
        weight=LOCK_WEIGHT,
    )
