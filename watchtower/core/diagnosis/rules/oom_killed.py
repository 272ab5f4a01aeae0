"""The kernel killed a rank for memory."""

from __future__ import annotations

from watchtower.core.diagnosis.deaths.wording import accuse_dead
from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.phrases import clean
from watchtower.core.reading.exits import DeathKind
from watchtower.wire.verdict import Cause


def find(picture: Picture) -> Finding | None:
    """Accuse the ranks whose nodes have evidence of an OOM kill."""
    culprits = picture.first_hand
    if not culprits or culprits[0].kind is not DeathKind.OOM:
        return None
    node = clean(culprits[0].node, 64) or "its node"
    return accuse_dead(
        picture,
        culprits,
        cause=Cause.OOM_KILLED,
        next_steps=(
            f"compare the memory limit of the job's cgroup on {node} with what its ranks and their "
            "data loader workers use",
            "lower the number of workers or the prefetch depth, or raise the limit, then restart "
            "from the last checkpoint",
        ),
    )
