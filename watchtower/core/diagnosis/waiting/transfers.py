"""Finds the rank that has left out a message which another still waits for.

Both wait then, often for each other: the receiver for the message, the sender for an answer to it,
or in a collective after it. The counts of blocking sends and receives tell who broke the exchange.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from watchtower.core.diagnosis.crowd import Standings
from watchtower.core.diagnosis.waiting.alone import find_alone, find_candidates
from watchtower.core.diagnosis.waiting.callsites import Order
from watchtower.core.diagnosis.waiting.graph import PointKind, WaitPoint
from watchtower.core.diagnosis.waiting.records import Records
from watchtower.core.ranksets import name_ranks
from watchtower.wire.collectives import PeerTransfers


@dataclass(frozen=True, slots=True)
class MissingSend:
    """A message that was never sent although its sender has gone on."""

    sender: int
    receiver: int
    number: int
    """The receiver waits for the sender's message of this number."""
    reasons: tuple[str, ...]
    """What shows that the sender has gone on, as clauses about it."""


def find_missing_sends(standings: Standings) -> tuple[MissingSend, ...]:
    """Look at each message that is waited for inside a cycle: is its sender past it?"""
    if standings.graph is None or standings.records is None:
        return ()
    alone = standings.once(find_alone)
    if alone is not None and alone.order in (Order.LEFT_LOOP, Order.IN_LOOP):
        return ()  # It sends nothing any more because its loop is over.
    found = []
    for end, candidates in standings.once(find_candidates):
        for point in end.points:
            if point.kind is not PointKind.RECEIVE or not point.missing:
                continue
            sender, receiver = point.missing[0], point.waiting[0]
            if candidates and sender not in candidates:
                continue
            reasons = tuple(_find_reasons(standings, standings.records, end.points, point))
            if reasons:
                found.append(MissingSend(sender, receiver, point.number, reasons))
    return tuple(found)


def _lead(row: PeerTransfers) -> int:
    """How many more receives than sends an exchange by turns has at most: who answers comes first
    to its next receive, who opens has sent before.
    """
    return 0 if row.opened_by_send else 1


def _find_reasons(
    standings: Standings, records: Records, points: tuple[WaitPoint, ...], point: WaitPoint
) -> Iterator[str]:
    sender, receiver, number = point.missing[0], point.waiting[0], point.number
    row = records.transfers_with(sender, receiver)
    if row and row.sends_begun and row.receives_begun - row.sends_begun > _lead(row):
        yield f"it waits for message {row.receives_begun} of {name_ranks([receiver])}"
    for other in records.transfers.get(sender, ()):
        if other.peer not in (receiver, -1) and not other.opened_by_send:
            # One more than it has passed on: it may be in a collective between the two.
            if other.receives_done > number:
                yield f"it has received {other.receives_done} from {name_ranks([other.peer])}"
            break
    for other_point in points:
        # Only a call that the receiver comes to as well shows that its sender is past the message.
        waits = sender in other_point.waiting and receiver in other_point.missing
        if waits and other_point.group is not None:
            yield f"it waits in {other_point.operation or 'a collective'}"
            break
    ahead, behind = standings.by_rank[sender].step, standings.by_rank[receiver].step
    if ahead is not None and behind is not None and ahead > behind:
        yield f"it is at step {ahead}, {name_ranks([receiver])} at {behind}"
