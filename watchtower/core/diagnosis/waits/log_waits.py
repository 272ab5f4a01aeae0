"""Lets collective records correct what stacks say about who waits.

A stack shows the name of a call, records show what was entered. DDP's all_reduce has no Python
frame, a hook may hang inside backward, and a wrapper may be called barrier and be something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from watchtower.core.diagnosis.position import Place, Position
from watchtower.core.diagnosis.waits.collective_logs import Records
from watchtower.core.diagnosis.waits.graph import WaitGraph, build_wait_graph
from watchtower.core.diagnosis.waits.sinks import MAY_BE_FOR_RANKS, find_awaited
from watchtower.core.reading.frames import WAITING_CLASSES, FrameClass

BUSY_ELSEWHERE = frozenset(
    {FrameClass.DATALOADER, FrameClass.CHECKPOINT, FrameClass.COMPILE, FrameClass.CHILD}
)
"""A rank whose innermost purpose is one of these does not wait for a collective there, even while
one that it started earlier is still under way. The name of a function alone is not enough: it must
be in a known library's file, or the kernel must show a wait that is not for other ranks."""

SHOWN_WAITS = WAITING_CLASSES | {FrameClass.BACKWARD, FrameClass.DEVICE}
"""Classes in which the thread that trains may be in the call itself."""

ABSENT = frozenset({Place.CANNOT_RUN, Place.ABSENT})


def graph_of(positions: Mapping[int, Position], records: Records) -> WaitGraph:
    """Build the wait-for graph of these ranks."""
    items = positions.values()
    return build_wait_graph(
        records,
        elsewhere=[item.rank for item in items if _is_elsewhere(item)],
        absent=[item.rank for item in items if item.place in ABSENT],
    )


def place_by_records(
    positions: Mapping[int, Position], records: Records, graph: WaitGraph
) -> dict[int, Position]:
    """Place the ranks that gave records by what they have entered."""
    awaited = find_awaited(graph)
    return {rank: _place(item, records, graph, awaited) for rank, item in positions.items()}


def _place(
    position: Position, records: Records, graph: WaitGraph, awaited: frozenset[int]
) -> Position:
    place = _find_place(position, records, graph)
    if position.rank in awaited and _is_in_unknown_call(position, records):
        place = Place.ELSEWHERE
    return position if place is position.place else replace(position, place=place)


def _is_elsewhere(position: Position) -> bool:
    if position.place in ABSENT:
        return True
    if position.frame_class in BUSY_ELSEWHERE and not _rests_on_names_alone(position):
        return True
    if position.is_waited_beside and position.frame_class not in SHOWN_WAITS:
        return True  # what is open is that other thread's
    computes = position.active or position.spins
    return position.place is Place.ELSEWHERE and (computes or not position.asleep)


def _rests_on_names_alone(position: Position) -> bool:
    """Whether only names of functions show what it does: they may belong to a wrapper around it."""
    if position.reading is not None and position.reading.by_library:
        return False
    return not position.asleep or position.wait.wait_class in MAY_BE_FOR_RANKS


def _is_in_unknown_call(position: Position, records: Records) -> bool:
    """Tell whether it stays in a call that waits, of which no recorder knows: a monitored barrier,
    a receive that was begun before, a call of another library. The others do wait for it.
    """
    if position.frame_class is not FrameClass.COLLECTIVE or not position.unchanged:
        return False
    last = position.last_dump
    told = last is not None and last.collectives is not None and not last.collectives.failure
    return told and position.place is Place.INSIDE and position.rank in records.of_rank


def _find_place(position: Position, records: Records, graph: WaitGraph) -> Place:
    place = position.place
    if place in ABSENT or position.rank not in records.of_rank:
        return place
    if position.rank in graph.blocked_in:
        return Place.INSIDE
    if position.rank in graph.sinks and position.frame_class not in WAITING_CLASSES:
        return Place.ELSEWHERE
    return place
