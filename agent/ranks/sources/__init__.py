"""What shows that a process is a rank, and which one: one file for each source."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from agent.ranks.sources import actor, environment, page, title
from agent.ranks.sources.source import Membership, RankClaim, Shown, Source

SOURCES: tuple[Source, ...] = (page.SOURCE, environment.SOURCE, title.SOURCE, actor.SOURCE)
"""The first one that knows a rank decides. A later one adds what the earlier ones do not know, if
it has the same rank. What the program says of itself comes before what it was given. The first one
that knows a place in a group counts where no process of the group has a rank.
"""


def find_claim(shown: Shown) -> RankClaim | None:
    """Return the rank of a process according to all sources; None if none has one."""
    found: RankClaim | None = None
    for claim in (source.find_claim(shown) for source in SOURCES):
        if found is None:
            found = claim
        elif claim is not None and claim.rank == found.rank:
            found = _complete(found, claim)
    return found


def find_inherited_claim(shown: Shown) -> RankClaim | None:
    """Return the rank that wrappers and children of the process show, too; None without one."""
    claims = (source.find_claim(shown) for source in SOURCES if source.is_inherited)
    return next((claim for claim in claims if claim is not None), None)


def find_member(shown: Shown) -> Membership | None:
    """Return the place of a process in a group that has no ranks; None without a group."""
    places = (source.find_member(shown) for source in SOURCES)
    return next((place for place in places if place is not None), None)


def find_mistake(shown: Shown) -> str:
    """Return what is wrong with the rank that a process shows; empty if nothing is wrong."""
    return next(filter(None, (source.find_mistake(shown) for source in SOURCES)), "")


@cache
def variables_of_ranks() -> frozenset[str]:
    """Return the variables of the environment that the sources need."""
    return frozenset(name for source in SOURCES for name in source.variables)


def _complete(first: RankClaim, other: RankClaim) -> RankClaim:
    names = ("local_rank", "world_size", "restart_count")
    missing = {name: getattr(other, name) for name in names if getattr(first, name) is None}
    starts_others = first.starts_others or other.starts_others
    return replace(first, **missing, starts_others=starts_others)
