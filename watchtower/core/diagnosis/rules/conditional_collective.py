"""A rank is in a collective that the others never call: a condition held on that rank only."""

from __future__ import annotations

from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.split_accusation import accuse_split, place_of_first
from watchtower.wire.verdict import Cause


def find(picture: Picture) -> Finding | None:
    """Accuse the ranks inside, not the majority that waits elsewhere."""
    return accuse_split(
        picture,
        Cause.CONDITIONAL_COLLECTIVE,
        next_steps=(
            f"read the condition around {place_of_first(picture)}: it held on this rank and not "
            "on the others",
            "decide such a condition together (all_reduce of a flag), so that all ranks call the "
            "collective or none",
        ),
    )
