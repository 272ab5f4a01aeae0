"""A rank raised an exception of its own and ended.

Exceptions by which a rank notices that a peer is gone are those of victims. Only when nobody else
is gone, missing or held can one of them be the rank's own trouble.
"""

from __future__ import annotations

from watchtower.core.diagnosis.deaths.wording import accuse_dead
from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.leavers import accuse_leavers, find_leavers
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Place
from watchtower.core.diagnosis.weighing import DOUBT_CEILING
from watchtower.core.phrases import clean
from watchtower.core.reading.exits import DeathKind
from watchtower.wire.verdict import Cause

CONSEQUENTIAL_CEILING = 0.6
"""A connection error while everyone else lives: the other end may lie outside the job."""


def find(picture: Picture) -> Finding | None:
    """Accuse the ranks that raised first."""
    culprits = picture.first_hand
    if not culprits:
        return _find_leavers(picture)
    first = culprits[0]
    if first.kind not in {DeathKind.OWN_EXCEPTION, DeathKind.CONSEQUENTIAL}:
        return None
    return accuse_dead(
        picture,
        culprits,
        cause=Cause.EXCEPTION,
        ceiling=1.0 if first.kind is DeathKind.OWN_EXCEPTION else _find_doubt(picture),
        next_steps=(
            f"read the traceback in the output of rank {first.rank} on "
            f"{clean(first.node, 64) or 'its node'}",
            "fix the cause, then restart the job from its last checkpoint",
        ),
    )


def _find_leavers(picture: Picture) -> Finding | None:
    """Accuse ranks whose program ended so while their process cannot end."""
    raised = [leaver for leaver in find_leavers(picture) if leaver.raised]
    if not raised:
        return None
    first = raised[0].position
    return accuse_leavers(
        picture,
        raised,
        cause=Cause.EXCEPTION,
        next_steps=(
            f"read the traceback in the output of rank {first.rank} on "
            f"{clean(first.evidence.node, 64) or 'its node'}",
            "end its process: a thread that is no daemon, or what runs at exit, keeps it; "
            "then restart the job from its last checkpoint",
        ),
    )


def _find_doubt(picture: Picture) -> float:
    others = picture.missing or picture.at(Place.CANNOT_RUN, Place.UNSEEN)
    alone = len(picture.deaths) == 1 and not others
    return CONSEQUENTIAL_CEILING if alone else DOUBT_CEILING
