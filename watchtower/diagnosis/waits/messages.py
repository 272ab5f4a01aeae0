"""Finds the rank that has left out a message which another rank still waits for.

Both wait then, often for each other: the receiver for the message, the sender for an answer to it,
or in a collective after it. The counts of blocking sends and receives show which of them broke the
exchange.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from watchtower.diagnosis.waits.callsites import ProgramOrder
from watchtower.diagnosis.waits.collective_logs import CollectiveLogs
from watchtower.diagnosis.waits.graph import PointKind, WaitPoint
from watchtower.diagnosis.waits.odd_rank import OddRank, find_candidates
from watchtower.diagnosis.waits.positions import Positions
from watchtower.wire.collectives import PeerTransfers

MAX_LEAD = 4
"""Messages that a stage may have taken more than it has passed on. One that has taken far more gets
several for each that it sends: its counts show nothing of the message that is waited for."""


@dataclass(frozen=True, slots=True)
class AheadOfExchange:
    """It waits for a message of the receiver that comes after the one it has not sent."""

    number: int
    receiver: int


@dataclass(frozen=True, slots=True)
class ReceivedMore:
    """It has received more from its other neighbour than it has passed on."""

    count: int
    peer: int


@dataclass(frozen=True, slots=True)
class WaitsIn:
    """It waits in a collective that the receiver comes to as well."""

    operation: str
    """Empty where it is not known."""


@dataclass(frozen=True, slots=True)
class FurtherStep:
    """It is at a later step than the receiver."""

    step: int
    receiver: int
    step_of_receiver: int


GoneOn = AheadOfExchange | ReceivedMore | WaitsIn | FurtherStep
"""Proofs that a sender is past a message."""


@dataclass(frozen=True, slots=True)
class MissingSend:
    """A message that was never sent although its sender has gone on."""

    sender: int
    receiver: int
    number: int
    """The receiver waits for the sender's message of this number."""
    proofs: tuple[GoneOn, ...]
    """Proofs that the sender has gone on."""


def find_missing_sends(positions: Positions, odd_rank: OddRank | None) -> tuple[MissingSend, ...]:
    """Find the messages that a rank of a cycle waits for and whose sender has gone on."""
    logs = positions.collective_logs
    if positions.graph is None or logs is None:
        return ()
    if odd_rank is not None and odd_rank.order in (ProgramOrder.LEFT_LOOP, ProgramOrder.IN_LOOP):
        return ()  # it sends no more because its loop is over
    found = []
    for end, candidates in find_candidates(positions.graph):
        may_be_odd = frozenset(candidates or end.ranks)
        for point in end.points:
            if point.kind is not PointKind.RECEIVE or not point.missing:
                continue
            sender, receiver = point.missing[0], point.waiting[0]
            if sender not in may_be_odd:
                continue
            proofs = tuple(_find_proofs(positions, logs, positions.graph.points_of(sender), point))
            if proofs:
                found.append(MissingSend(sender, receiver, point.number, proofs))
    # What a stage gets it passes on, whatever the order of its messages. That an exchange is by
    # turns is only usual: a stage may take several micro-batches before it answers.
    kept = [each for each in found if any(isinstance(p, ReceivedMore) for p in each.proofs)]
    kept = kept or [each for each in found if not _asks_for_more(logs, each)]
    return tuple(kept)


def _asks_for_more(logs: CollectiveLogs, send: MissingSend) -> bool:
    """Return whether the receiver asks for one message more than an exchange by turns has: then
    the sender owes it nothing."""
    return _is_ahead(logs.transfers_with(send.receiver, send.sender))


def _is_ahead(row: PeerTransfers | None) -> bool:
    """Return whether a rank has begun more receives than an exchange by turns allows.

    A rank that answers comes to its next receive first. A rank that opens has sent before.
    """
    if row is None or not row.sends_begun:
        return False
    return row.receives_begun - row.sends_begun > (0 if row.opened_by_send else 1)


def _find_proofs(
    positions: Positions, logs: CollectiveLogs, of_sender: tuple[WaitPoint, ...], point: WaitPoint
) -> Iterator[GoneOn]:
    """Yield the proofs that the sender is past the message of `point`.

    `of_sender`: the points that the sender is blocked in.
    """
    sender, receiver, number = point.missing[0], point.waiting[0], point.number
    row = logs.transfers_with(sender, receiver)
    if row is not None and _is_ahead(row):
        yield AheadOfExchange(row.receives_begun, receiver)
    # With one more than it has passed on, it may be in a collective between the two. If it waits
    # for a message of the receiver, it is past the one to the receiver.
    awaits = any(
        other.kind is PointKind.RECEIVE and receiver in other.missing for other in of_sender
    )
    least = number if awaits else number + 1
    for other in logs.transfers.get(sender, ()):
        if other.peer not in (receiver, -1) and not other.opened_by_send:
            if least <= other.receives_done <= number + MAX_LEAD:
                yield ReceivedMore(other.receives_done, other.peer)
            break
    for other_point in of_sender:
        # Only a call that the receiver comes to as well shows that its sender is past the message.
        if other_point.group is not None and receiver in other_point.missing:
            yield WaitsIn(other_point.operation)
            break
    ahead, behind = positions.by_rank[sender].step, positions.by_rank[receiver].step
    if ahead is not None and behind is not None and ahead > behind:
        yield FurtherStep(ahead, receiver, behind)
