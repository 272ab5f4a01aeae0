"""Lets collective records correct what stacks say about who waits.

A stack shows the name of a call, records show what was entered. DDP's all_reduce has no Python
frame, a hook may hang inside backward, and a wrapper may be called barrier and be something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from watchtower.core.diagnosis.standing import Place, Standing
from watchtower.core.diagnosis.waiting.doubts import MAY_BE_FOR_RANKS, find_awaited
from watchtower.core.diagnosis.waiting.graph import WaitGraph, build_wait_graph
from watchtower.core.diagnosis.waiting.records import Records
from watchtower.core.reading.frames import WAITING_CLASSES, FrameClass

BUSY_ELSEWHERE = frozenset(
    {FrameClass.DATALOADER, FrameClass.CHECKPOINT, FrameClass.COMPILE, FrameClass.CHILD}
)
"""A rank whose innermost purpose is one of these does not wait for a collective there, even while
one that it started earlier is still under way. The name of a function alone is not enough: it must
be in a known library's file, or the kernel must show a wait that is not for other ranks."""

SHOWN_WAITS = WAITING_CLASSES | {FrameClass.BACKWARD, FrameClass.DEVICE}
"""Classes in which the thread that trains may be in the call itself."""

ABSENT = frozenset({Place.HELD, Place.GONE, Place.MISSING})


def graph_of(standings: Mapping[int, Standing], records: Records) -> WaitGraph:
    """Build the wait-for graph of these ranks."""
    items = standings.values()
    return build_wait_graph(
        records,
        elsewhere=[item.rank for item in items if _is_elsewhere(item)],
        absent=[item.rank for item in items if item.place in ABSENT],
    )


def place_by_records(
    standings: Mapping[int, Standing], records: Records, graph: WaitGraph
) -> dict[int, Standing]:
    """Place the ranks that gave records by what they have entered."""
    awaited = find_awaited(graph)
    return {rank: _place(item, records, graph, awaited) for rank, item in standings.items()}


def _place(
    standing: Standing, records: Records, graph: WaitGraph, awaited: frozenset[int]
) -> Standing:
    place = _find_place(standing, records, graph)
    if standing.rank in awaited and _is_in_unknown_call(standing, records):
        place = Place.BEHIND
    return standing if place is standing.place else replace(standing, place=place)


def _is_elsewhere(standing: Standing) -> bool:
    if standing.place in ABSENT:
        return True
    if standing.frame_class in BUSY_ELSEWHERE and not _rests_on_names_alone(standing):
        return True
    if standing.is_waited_beside and standing.frame_class not in SHOWN_WAITS:
        return True  # what is open is that other thread's
    computes = standing.active or standing.spins
    return standing.place is Place.BEHIND and (computes or not standing.asleep)


def _rests_on_names_alone(standing: Standing) -> bool:
    """Whether only names of functions show what it does: they may belong to a wrapper around it."""
    if standing.reading is not None and standing.reading.by_library:
        return False
    return not standing.asleep or standing.wait.wait_class in MAY_BE_FOR_RANKS


def _is_in_unknown_call(standing: Standing, records: Records) -> bool:
    """Tell whether it stays in a call that waits, of which no recorder knows: a monitored barrier,
    a receive that was begun before, a call of another library. The others do wait for it.
    """
    if standing.frame_class is not FrameClass.COLLECTIVE or not standing.unchanged:
        return False
    last = standing.last_dump
    told = last is not None and last.collectives is not None and not last.collectives.failure
    return told and standing.place is Place.WAITING and standing.rank in records.of_rank


def _find_place(standing: Standing, records: Records, graph: WaitGraph) -> Place:
    place = standing.place
    if place in ABSENT or standing.rank not in records.of_rank:
        return place
    if standing.rank in graph.blocked_in:
        return Place.WAITING
    if standing.rank in graph.sinks and standing.frame_class not in WAITING_CLASSES:
        return Place.BEHIND
    return place
