"""Ranks made the same call of a group with another operation, order, size or element type."""

from __future__ import annotations

from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.split_accusation import accuse_split, place_of_first
from watchtower.wire.verdict import Cause


def find(picture: Picture) -> Finding | None:
    """Accuse the minority; of two ranks either may be wrong."""
    return accuse_split(
        picture,
        Cause.MISMATCHED_COLLECTIVE,
        next_steps=(
            f"compare what leads to {place_of_first(picture)} with the other ranks: order of "
            "calls, tensor sizes and element types must be equal on all",
            "TORCH_DISTRIBUTED_DEBUG=DETAIL checks that at each call, at some cost",
        ),
    )
