"""Deadlines in the reply to a report, so that an agent dumps without an order.

An accepted report always gets a reply. If the deadline of a job cannot be computed, it is left out,
and the other jobs of the node get their deadlines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from watchtower.fleet.fleet import Fleet
from watchtower.fleet.nodes import HeldRank
from watchtower.jobs.dump_timing import jitter_s
from watchtower.jobs.keeper import Keeper
from watchtower.jobs.ranks import RankRecord
from watchtower.tower.troubles import Troubles
from watchtower.wire.bounds import MAX_AGE_S
from watchtower.wire.orders import Deadline
from watchtower.wire.report import Beat, RankVitals, Report

DEADLINES = "making its deadlines"


class _Limit(NamedTuple):
    """How long ranks of one job in one phase may be without a heartbeat."""

    after_s: float
    jitter_s: float


def find_deadlines(report: Report, fleet: Fleet, troubles: Troubles) -> tuple[Deadline, ...]:
    """Return how long each rank of a report may be without a heartbeat, if that is known.

    The last deadline of a rank is used again if it has not changed: it takes longer to make one,
    and to encode it, than to compare it.
    """
    limits: dict[tuple[str, str], _Limit | None] = {}
    found: list[Deadline] = []
    for vitals, (label, record) in _pair(report.ranks, fleet.nodes[report.node].held):
        beat = vitals.beat
        if beat is None or beat.step < 0 or vitals.ended is not None:
            continue
        key = label, beat.phase
        if key not in limits:
            limits[key] = _find_limit(fleet.jobs.get(label), beat.phase, troubles)
        limit = limits[key]
        if limit is None:
            continue
        after_s, jitter_s = limit
        if record.phase_changed_at > float("-inf"):
            after_s = min(after_s + _after_phase_s(record, beat), MAX_AGE_S)
        known = record.deadline
        if (
            known is None
            or known.after_s != after_s
            or known.jitter_s != jitter_s
            or known.phase != beat.phase
        ):
            known = record.deadline = _make(vitals, beat.phase, after_s, jitter_s)
        found.append(known)
    return tuple(found)


def _pair(
    ranks: Sequence[RankVitals], held: Sequence[HeldRank]
) -> Iterable[tuple[RankVitals, HeldRank]]:
    """Return what is reported of each rank that is held. Others are not watched, or not yet."""
    if len(held) == len(ranks):
        return zip(ranks, held, strict=True)
    by_process = {each.record.key[1:]: each for each in held}
    found = ((vitals, by_process.get((vitals.pid, vitals.start_time))) for vitals in ranks)
    return [(vitals, each) for vitals, each in found if each is not None]


def _find_limit(keeper: Keeper | None, phase: str, troubles: Troubles) -> _Limit | None:
    if keeper is None:
        return None
    attempt = keeper.attempt
    try:
        after_s = keeper.detector.deadline_s(attempt, phase, keeper.pauses)
    except Exception as error:
        troubles.note(attempt.job, DEADLINES, error)
        return None
    troubles.end(attempt.job, DEADLINES)
    return (
        None if after_s is None else _Limit(min(after_s, MAX_AGE_S), jitter_s(len(attempt.ranks)))
    )


def _make(vitals: RankVitals, phase: str, after_s: float, jitter_s: float) -> Deadline:
    return Deadline(
        job=vitals.job,
        owner=vitals.owner,
        launch=vitals.launch,
        phase=phase,
        rank=vitals.rank,
        after_s=after_s,
        jitter_s=jitter_s,
    )


def _after_phase_s(record: RankRecord, beat: Beat) -> float:
    """Return the seconds from the last heartbeat of a rank until it last entered or left a phase.

    An agent counts from the heartbeat, and a limit counts from the latest of these.
    """
    if record.vitals.beat != beat:
        return 0.0
    return max(0.0, record.phase_changed_at - (record.seen_at - beat.age_s))
