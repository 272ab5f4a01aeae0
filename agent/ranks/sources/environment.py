"""The rank that a launcher gave to a process in its environment, or that the program set there."""

from __future__ import annotations

from collections.abc import Mapping

from watchtower_heartbeat.launchers import IDENTITY_VARIABLES, LAUNCHERS, read_identity

from agent.ranks.sources.source import RankClaim, Source, known
from watchtower.wire.bounds import MAX_RANK
from watchtower.writing.printable import printable

RESTARTS = "TORCHELASTIC_RESTART_COUNT"

SHOWN_OF_VALUE = 32
"""Characters of a variable's value in a sentence."""


def claim_rank(environment: Mapping[str, str]) -> RankClaim | None:
    """Return the rank in an environment, or None if it has no rank or one that is out of range."""
    words = read_identity(environment)
    if not 0 <= words["rank"] <= MAX_RANK:
        return None
    return RankClaim(
        rank=words["rank"],
        local_rank=known(words["local_rank"]),
        world_size=known(words["world_size"]) or None,
        restart_count=_number(environment.get(RESTARTS, "")),
        starts_others=not any(environment.get(name) for name, _, _ in LAUNCHERS),
    )


def find_rank_mistake(environment: Mapping[str, str]) -> str:
    """Return what is wrong with the rank in an environment, or "" if nothing is wrong."""
    claim = claim_rank(environment)
    if claim is not None and claim.is_possible:
        return ""
    for rank, _, world_size in LAUNCHERS:
        text, size = (environment.get(name, "").strip() for name in (rank, world_size))
        if not text or (claim is not None and text != str(claim.rank)):
            continue
        shown = f"{rank}={printable(text, SHOWN_OF_VALUE)}"
        if claim is None:
            return f"{shown} is not a number from 0 to {MAX_RANK}"
        return f"{shown} is not below {world_size}={printable(size, SHOWN_OF_VALUE)}"
    return ""


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


SOURCE = Source(
    find_claim=lambda shown: claim_rank(shown.variables),
    variables=tuple(sorted({RESTARTS, *filter(None, IDENTITY_VARIABLES)})),
    is_inherited=True,
    find_mistake=lambda shown: find_rank_mistake(shown.variables),
)
