"""A rank left with exit code 0 while its peers still need it.

Ranks that leave one after the other at the end of a job are healthy: somebody must be inside a
collective without them, or have died of their leaving.
"""

from __future__ import annotations

from watchtower.core.diagnosis.deaths.death import Death
from watchtower.core.diagnosis.deaths.launcher import find_put_to_death
from watchtower.core.diagnosis.deaths.wording import accuse_dead
from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.leavers import accuse_leavers, find_leavers
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.weighing import DOUBT_CEILING
from watchtower.core.phrases import clean
from watchtower.core.reading.exits import DeathKind
from watchtower.wire.verdict import Cause

AFTERWARDS_CEILING = 0.75
"""Nobody waits any more; connection errors may also come from an untidy end of the job."""


def find(picture: Picture) -> Finding | None:
    """Accuse the ranks that left."""
    deaths = picture.deaths
    left = [death for death in deaths if death.kind is DeathKind.CLEAN]
    if not deaths:
        return _find_leavers(picture)
    if not left or _is_another_reason(deaths):
        return None
    waiting = [item for item in picture.waiting if not item.presumed]
    victims = [death for death in deaths if _followed(death, left)]
    if not waiting and not victims:
        return None
    ceiling = 1.0 if waiting else AFTERWARDS_CEILING
    if len(left) > len(waiting) + len(victims):
        ceiling = DOUBT_CEILING
    node = clean(left[0].node, 64) or "its node"
    return accuse_dead(
        picture,
        left,
        cause=Cause.EXITED_EARLY,
        ceiling=ceiling,
        next_steps=(
            f"find why rank {left[0].rank} on {node} left its loop: fewer batches than the others, "
            "a stop condition that only this rank met",
            "restart the job from its last checkpoint",
        ),
    )


def _find_leavers(picture: Picture) -> Finding | None:
    """Accuse ranks that left without an exception while their process cannot end."""
    left = [leaver for leaver in find_leavers(picture) if not leaver.raised]
    if not left:
        return None
    first = left[0].position
    node = clean(first.evidence.node, 64) or "its node"
    return accuse_leavers(
        picture,
        left,
        cause=Cause.EXITED_EARLY,
        next_steps=(
            f"find why rank {first.rank} on {node} left its loop: the last lines of its output, "
            "fewer batches than the others, a stop condition that only this rank met",
            "end its process: a thread that is no daemon, or what runs at exit, keeps it; "
            "then restart the job from its last checkpoint",
        ),
    )


def _is_another_reason(deaths: tuple[Death, ...]) -> bool:
    """Tell whether a rank died of more than these exits: the launcher ends the others later."""
    explained = find_put_to_death(deaths)
    return any(
        death.rank not in explained
        for death in deaths
        if death.kind not in {DeathKind.CLEAN, DeathKind.CONSEQUENTIAL}
    )


def _followed(death: Death, left: list[Death]) -> bool:
    return death.kind is DeathKind.CONSEQUENTIAL and death.age_s <= max(item.age_s for item in left)
