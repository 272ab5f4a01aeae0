"""The state of a rank and its place, as the summary shows them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Place, Position
from watchtower.evidence.frames import StackReading
from watchtower.views.case_summary import RankState
from watchtower.writing.text import clean

MAX_PLACE = 160
"""Characters of a place."""

MAX_NODE = 64
"""Characters of the name of a node."""


def find_states(picture: Picture, suspects: Collection[int]) -> dict[int, RankState]:
    """Return the state of each rank. `suspects` are the ranks that the verdict names."""
    states = {rank: find_state(item) for rank, item in picture.by_rank.items()}
    states.update((rank, RankState.SUSPECT) for rank in suspects if rank in states)
    return states


def find_state(position: Position) -> RankState:
    """Return the state of a rank, apart from whether the verdict names it."""
    place = position.place
    # The most frequent ones first: this is asked for each of thousands of ranks.
    if place is Place.INSIDE:
        return RankState.WAITING
    if place is Place.CALL_UNKNOWN:
        return RankState.DEVICE if position.waits_for_device else RankState.PRESUMED
    if place is Place.ELSEWHERE:
        return RankState.ELSEWHERE
    if place is Place.ABSENT:
        return RankState.MISSING if position.is_missing else RankState.ENDED
    return RankState.CANNOT_RUN if place is Place.CANNOT_RUN else RankState.UNSEEN


class Places:
    """Names the places of ranks. Ranks with the same stack share one text."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[StackReading, str]] = {}

    def name(self, position: Position) -> str:
        """Return "all_reduce, train.py:22 in train"; empty without a stack."""
        reading = position.reading
        if reading is None:
            return ""
        known = self._names.get(id(reading))
        if known is None:
            # The reading is kept, so that no other one gets its id.
            known = self._names[id(reading)] = reading, _name_place(reading)
        return known[1]


def _name_place(reading: StackReading) -> str:
    if reading.what == reading.function or not reading.what:
        return clean(reading.where, MAX_PLACE)
    return clean(f"{reading.what}, {reading.where}", MAX_PLACE)


def find_only(values: Iterable[str]) -> str:
    """Return the one value; empty if there are several, or none."""
    found = ""
    for index, value in enumerate(values):
        if index and value != found:
            return ""
        found = value
    return found
