"""Writes what the wait-for graph says as evidence and sentences; decides nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from watchtower.core.diagnosis.standing import Standing
from watchtower.core.diagnosis.standings import Standings
from watchtower.core.diagnosis.waiting.graph import End
from watchtower.core.diagnosis.waiting.points import PointKind, WaitPoint
from watchtower.core.diagnosis.waiting.records import Group
from watchtower.core.ranksets import format_ranks, name_ranks
from watchtower.core.text import clean
from watchtower.wire.verdict import Evidence

RECORD_WEIGHT = 0.85
"""Records count what was entered; only what the library keeps in private may be wrong."""

UNSURE_WEIGHT = 0.5
"""The library says that a call was made, not that it has begun; or some members gave no records."""

MAX_HOPS = 4
"""Waits told of one path; a longer one is told from its far end."""

MAX_TOLD = 3
"""Paths told of one finding."""

MAX_MEMBERS = 6
"""Members of a group named one by one where it has no name of its own."""


def describe_group(group: Group) -> str:
    """Say "group tensor_parallel (ranks 2-3)"."""
    ranks = name_ranks(group.members) if len(group.members) <= MAX_MEMBERS else ""
    size = ranks or f"{len(group.members)} ranks"
    name = clean(group.name, 40)
    return f"group {name} ({size})" if name else f"the group of {size}"


def name_point(point: WaitPoint) -> str:
    """Say "all_reduce number 41 of group tensor_parallel (ranks 2-3)", or "recv number 41"."""
    operation = clean(point.operation, 60) or "collective"
    where = "" if point.group is None else f" of {describe_group(point.group)}"
    return f"{operation} number {point.number}{where}"


def wait_evidence(standings: Standings, suspects: Sequence[Standing]) -> tuple[Evidence, ...]:
    """Tell on which path the others wait for these ranks, where the records show one."""
    if standings.graph is None:
        return ()
    accused = {item.rank for item in suspects}
    told: list[Evidence] = []
    for end in standings.graph.ends:
        if len(told) == MAX_TOLD:
            break  # each path is a search over all who wait
        if accused.intersection(end.ranks) and (path := standings.graph.path_to(end)):
            weight = RECORD_WEIGHT if end.certain else UNSURE_WEIGHT
            ranks = sorted({rank for rank, _ in path}.union(end.ranks))
            text = say_path(path, end)
            told.append(
                Evidence(source="records", text=text, ranks=format_ranks(ranks), weight=weight)
            )
    return (*told, *_comm_thread_evidence(standings, suspects))


def _comm_thread_evidence(standings: Standings, suspects: Sequence[Standing]) -> Iterator[Evidence]:
    """Tell how often the suspects called what is waited for beside main, where no stack shows it.

    A thread that died or never called leaves nothing but its count.
    """
    if standings.comm_threads is None or standings.graph is None or standings.records is None:
        return
    threads = ", ".join(f"`{clean(name, 60)}`" for name, _ in sorted(standings.comm_threads.roots))
    for item in suspects[:MAX_TOLD]:
        kept = (p for p in standings.graph.points if item.rank in p.missing and p.group)
        if (point := next(kept, None)) is None or point.group is None:
            continue
        if (log := standings.records.log_of(item.rank, point.group.id)) is None:
            continue
        text = (
            f"collectives are made beside main, in {threads}: {name_ranks(point.waiting)} "
            f"called number {point.number} of {describe_group(point.group)}, "
            f"rank {item.rank} {log.called}"
        )
        ranks = format_ranks([*point.waiting, item.rank])
        yield Evidence(source="records", text=text, ranks=ranks, weight=RECORD_WEIGHT)


def say_path(path: Sequence[tuple[int, WaitPoint]], end: End) -> str:
    """Say "rank 0 waits in ... for rank 2, which waits in ... for rank 3, which has not ..."."""
    shown = [*path[:1], *path[-MAX_HOPS + 1 :]] if len(path) > MAX_HOPS else list(path)
    parts = []
    for index, (rank, point) in enumerate(shown):
        whom = shown[index + 1][0] if index + 1 < len(shown) else end.ranks[0]
        subject = f"rank {rank} waits" if index == 0 else "which waits"
        skipped = " and others" if len(path) > MAX_HOPS and index == 0 else ""
        parts.append(f"{subject} in {name_point(point)} for rank {whom}{skipped}")
    return f"{', '.join(parts)}, {_say_absence(shown[-1][1], end.ranks[0])}"


def _say_absence(point: WaitPoint, rank: int) -> str:
    if rank not in point.missing:
        return "of which it is not known"
    if point.kind is PointKind.RECEIVE:
        return "which has not sent it"
    return "which has not entered it" if point.kind is PointKind.COLLECTIVE else "which takes none"
