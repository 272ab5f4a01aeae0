"""Source of waits: collective logs. They correct what stacks show.

A stack shows the name of a call, a collective log what was entered. DDP's all_reduce has no Python
frame, a hook may hang inside backward, and a wrapper may be called barrier and do something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from watchtower.diagnosis.position import Place, Position
from watchtower.diagnosis.waits.collective_logs import CollectiveLogs, read_collective_logs
from watchtower.diagnosis.waits.graph import EndKind, WaitGraph, build_wait_graph
from watchtower.diagnosis.waits.hidden_waits import MAY_BE_FOR_RANKS
from watchtower.diagnosis.waits.positions import Known
from watchtower.diagnosis.waits.queued_messages import limit_to_sent
from watchtower.evidence.frame_class import FrameClass

ABSENT = frozenset({Place.CANNOT_RUN, Place.ABSENT})

COLLECTIVE_LOG = "collective log"


def find_waits_in_logs(positions: Known) -> Known:
    """Build the graph of collective logs, and place the ranks by what they have entered."""
    logs = read_collective_logs(positions.case)
    if logs is None:
        return positions
    queued = frozenset(i.rank for i in positions.by_rank.values() if i.waits_for_device)
    logs = replace(logs, transfers=limit_to_sent(logs.transfers, queued), queued=queued)
    graph = _build_graph(positions.by_rank, logs)
    by_rank = {rank: _place(item, logs, graph) for rank, item in positions.by_rank.items()}
    found = replace(positions, by_rank=by_rank, collective_logs=logs, graph=graph)
    return found.with_edge(COLLECTIVE_LOG, graph.blocked_in)


def _build_graph(by_rank: Mapping[int, Position], logs: CollectiveLogs) -> WaitGraph:
    """Build the graph.

    Where every member has made each call that is waited for, the calls may be queued on devices in
    orders that wait for each other. Only such a cycle shows that the order matters: calls of
    several groups may also be executed side by side.
    """
    elsewhere = [item.rank for item in by_rank.values() if _is_elsewhere(item)]
    absent = [item.rank for item in by_rank.values() if item.place in ABSENT]
    graph = build_wait_graph(logs, elsewhere, absent)
    if not logs.oldest_open or any(end.kind is not EndKind.POINT for end in graph.ends):
        return graph
    ordered = build_wait_graph(logs, elsewhere, absent, in_order=True)
    is_cycle = any(end.kind is EndKind.CYCLE for end in ordered.ends)
    return ordered if is_cycle else graph


def _place(position: Position, logs: CollectiveLogs, graph: WaitGraph) -> Position:
    place = _find_place(position, logs, graph)
    if position.rank in graph.certain_sinks and _is_in_unknown_call(position, logs):
        place = Place.ELSEWHERE
    return position.moved_to(place)


def _find_place(position: Position, logs: CollectiveLogs, graph: WaitGraph) -> Place:
    place = position.place
    if place in ABSENT or position.rank not in logs.of_rank:
        return place
    if position.rank in graph.blocked_in:
        return Place.INSIDE
    if position.waits_for_device:
        return place  # its device may be behind; its program is not
    if position.rank in graph.sinks and not position.frame_class.traits.waits_for_ranks:
        return Place.ELSEWHERE
    return place


def _is_elsewhere(position: Position) -> bool:
    if position.place in ABSENT:
        return True
    if position.waits_for_device:
        return False
    if position.frame_class.traits.is_busy_elsewhere and not _rests_on_names_alone(position):
        return True
    if position.is_waited_beside and not position.frame_class.traits.may_be_collective:
        return True  # the open call is that of the other thread
    computes = position.active or position.spins
    return position.place is Place.ELSEWHERE and (computes or not position.asleep)


def _rests_on_names_alone(position: Position) -> bool:
    """Return whether only names of functions show its work: they may belong to a wrapper.

    A name counts in the file of a known library. It also counts if the kernel shows a wait that is
    not for other ranks.
    """
    if position.reading is not None and position.reading.by_library:
        return False
    return not position.asleep or position.wait.wait_class in MAY_BE_FOR_RANKS


def _is_in_unknown_call(position: Position, logs: CollectiveLogs) -> bool:
    """Return whether it stays in a call that waits and that no log knows: a monitored barrier, a
    receive that was begun before, a call of another library. The other ranks do wait for it.
    """
    if position.frame_class is not FrameClass.COLLECTIVE or not position.unchanged:
        return False
    last = position.last_dump
    is_recent = last is not None and last.collectives is not None and not last.collectives.failure
    return is_recent and position.place is Place.INSIDE and position.rank in logs.of_rank
