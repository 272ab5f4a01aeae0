"""The rank on the heartbeat page of a process: the program itself wrote it there."""

from __future__ import annotations

from agent.ranks.sources.source import RankClaim, Shown, Source, known
from watchtower.wire.bounds import MAX_RANK


def claim_rank(shown: Shown) -> RankClaim | None:
    """Return the rank on a page, or None if it has no rank or one that is out of range."""
    view = shown.view
    if view is None or not 0 <= view.rank <= MAX_RANK:
        return None
    return RankClaim(
        rank=view.rank,
        local_rank=known(view.local_rank),
        world_size=known(view.world_size) or None,
    )


SOURCE = Source(find_claim=claim_rank)
