"""The part of a summary with every rank: its state and place, three bytes each, and groups of equal
ranks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Place, Position
from watchtower.evidence.frames import StackReading
from watchtower.views.case_summary import (
    CELL_BYTES,
    LAG_UNKNOWN,
    MAX_LAG,
    NUMBER_OF,
    NodeRanks,
    RankGrid,
    RankGroup,
    RankState,
    make_rank_set,
)
from watchtower.writing.ranksets import format_ranks, parse_ranks
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


MAX_GROUPS = 20
"""Rows of the table: as many as a screen reader can go through."""

MAX_PHASES = 64
"""Phases of one grid. A program has a handful of words; further ones are shown as the last."""

OTHER_PHASE = "other"


class GridRank(NamedTuple):
    """One rank, for its cell and its group. Texts may be raw, except the place."""

    rank: int
    node: str
    state: RankState
    step: int | None
    phase: str
    place: str


_Key = tuple[RankState, int | None, str, str]


def draw_grid(picture: Picture, states: Mapping[int, RankState], places: Places) -> RankGrid:
    """Return the grid of all ranks of a case. `states` is by rank."""
    name = places.name
    return build_grid(
        [
            GridRank(rank, item.evidence.node, states[rank], item.step, item.phase, name(item))
            for rank, item in picture.by_rank.items()
        ]
    )


def build_grid(ranks: Sequence[GridRank]) -> RankGrid:
    """Return the grid of these ranks, which are in ascending order."""
    groups: dict[_Key, list[GridRank]] = {}
    nodes: dict[str, list[GridRank]] = {}
    for item in ranks:
        groups.setdefault(item[2:], []).append(item)
        nodes.setdefault(item.node, []).append(item)
    top = max((key[1] for key in groups if key[1] is not None), default=None)
    phases = _number_phases(groups)
    cells = {key: _write_cell(key, top, phases) for key in groups}
    # The suspects first; the smallest groups are what a person searches for.
    order = sorted(
        groups.items(),
        key=lambda item: (item[0][0] is not RankState.SUSPECT, len(item[1]), item[1][0].rank),
    )
    shown = order if len(order) <= MAX_GROUPS else [*order[: MAX_GROUPS - 1], order[-1]]
    return RankGrid(
        nodes=tuple(_describe_node(node, members) for node, members in nodes.items()),
        cells=b"".join([cells[item[2:]] for members in nodes.values() for item in members]),
        phases=_name_phases(phases),
        step=top,
        groups=tuple(_describe_group(key, members, top) for key, members in shown),
        groups_left_out=len(order) - len(shown),
    )


def _number_phases(groups: Iterable[_Key]) -> dict[str, int]:
    """Return the numbers of the phases; plain training is 0."""
    numbers = {"": 0}
    for _, _, phase, _ in groups:
        numbers.setdefault(phase, min(len(numbers), MAX_PHASES - 1))
    return numbers


def _name_phases(numbers: Mapping[str, int]) -> tuple[str, ...]:
    names = {number: clean(phase, MAX_NODE) for phase, number in numbers.items()}
    if len(numbers) > MAX_PHASES:
        names[MAX_PHASES - 1] = OTHER_PHASE
    return tuple(names[number] for number in sorted(names))


def _write_cell(key: _Key, top: int | None, phases: Mapping[str, int]) -> bytes:
    state, step, phase, _ = key
    lag = _find_lag(step, top)
    return bytes((NUMBER_OF[state], LAG_UNKNOWN if lag is None else lag, phases[phase]))


def _find_lag(step: int | None, top: int | None) -> int | None:
    return None if step is None or top is None else min(top - step, MAX_LAG)


def _describe_node(node: str, members: Sequence[GridRank]) -> NodeRanks:
    first, last = members[0].rank, members[-1].rank
    ranks = f"{first}-{last}"
    if last - first + 1 != len(members) or first == last:
        ranks = format_ranks(item.rank for item in members)
    return NodeRanks(node=clean(node, MAX_NODE), ranks=ranks, count=len(members))


def _describe_group(key: _Key, members: Sequence[GridRank], top: int | None) -> RankGroup:
    state, step, phase, place = key
    return RankGroup(
        state=state,
        lag=_find_lag(step, top),
        phase=clean(phase, MAX_NODE),
        place=place,
        rank_set=make_rank_set(item.rank for item in members),
        node=clean(find_only(item.node for item in members), MAX_NODE),
    )


def cut_grid(grid: RankGrid, limit: int) -> RankGrid:
    """Return the grid with cells for at most `limit` ranks, those of the first nodes."""
    nodes, left = list[NodeRanks](), limit
    for node in grid.nodes:
        if left <= 0:
            break
        if node.count > left:
            ranks = sorted(parse_ranks(node.ranks))[:left]
            nodes.append(replace(node, ranks=format_ranks(ranks), count=left))
        else:
            nodes.append(node)
        left -= nodes[-1].count
    kept = sum(node.count for node in nodes)
    return replace(
        grid,
        nodes=tuple(nodes),
        cells=grid.cells[: kept * CELL_BYTES],
        ranks_left_out=grid.ranks_left_out + grid.count - kept,
    )
