"""A rank is in a collective that the others never call: a condition held on that rank only."""

from __future__ import annotations

from watchtower.core.case import Case
from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.split_accusation import accuse_split, place_of_first
from watchtower.core.diagnosis.standings import Standings
from watchtower.wire.verdict import Cause


def find(case: Case, standings: Standings) -> Finding | None:
    """Accuse the ranks inside, not the majority that waits elsewhere."""
    return accuse_split(
        standings,
        Cause.CONDITIONAL_COLLECTIVE,
        next_steps=(
            f"read the condition around {place_of_first(standings)}: it held on this rank and not "
            "on the others",
            "decide such a condition together (all_reduce of a flag), so that all ranks call the "
            "collective or none",
        ),
    )
