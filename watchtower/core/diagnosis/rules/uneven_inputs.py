"""A rank had fewer (or more) batches than the others: it has left the loop that they are in."""

from __future__ import annotations

from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.split_accusation import accuse_split, place_of_first
from watchtower.wire.verdict import Cause


def find(picture: Picture) -> Finding | None:
    """Accuse the ranks that wait on the other side of the end of a loop."""
    return accuse_split(
        picture,
        Cause.UNEVEN_INPUTS,
        next_steps=(
            "count the batches of each rank: shards of unequal size, a filter, a data set whose "
            "length is no multiple of the number of ranks, or an exception around a batch that is "
            "swallowed",
            f"let every rank make as many steps as the others before {place_of_first(picture)} "
            "(drop_last, padding, or torch's Join)",
        ),
    )
