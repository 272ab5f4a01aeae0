"""Finds ranks that are in different calls, and ranks that have left out a message.

Different calls: all ranks of a group should be in the same one. The few ranks that differ from the
many are accused. Two ranks that differ have no majority: either may be the one, so neither is named
with confidence.

Messages: another rank still waits for it. Both wait, often for each other: the receiver for the
message, the sender for an answer to it, or in a collective after it. The counts of blocking sends
and receives show which of them broke the exchange.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from watchtower.diagnosis.position import Place, Position
from watchtower.diagnosis.waits.callsites import ProgramOrder, compare_positions, site_of
from watchtower.diagnosis.waits.collective_logs import CollectiveLogs
from watchtower.diagnosis.waits.divergent_rank import Divergence, role_of
from watchtower.diagnosis.waits.graph import (
    EndKind,
    PointKind,
    WaitPoint,
    describe_group,
    name_point,
)
from watchtower.diagnosis.waits.odd_rank import OddRank, Sign, find_candidates
from watchtower.diagnosis.waits.positions import Positions
from watchtower.evidence.collective_log import CallKind, Over, compared
from watchtower.evidence.native import DEVICE_WAIT
from watchtower.wire.collectives import PeerTransfers
from watchtower.wire.verdict import Cause

Proof = Sign | Divergence
"""A proof of which side is wrong."""


class Ground(Enum):
    """The evidence of a split."""

    COLLECTIVE_LOGS = "collective logs"
    """The members of one group called different operations as its number N."""
    STACKS = "stacks"
    """No collective logs: the ranks wait at different lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Ranks in different calls."""

    ground: Ground
    cause: Cause
    few: tuple[Position, ...]
    many: tuple[Position, ...]
    few_call: str
    """Such as "barrier", or "all_reduce of float32[128]" where only that differs."""
    many_call: str
    is_meeting: bool = False
    """The call of the few carries no data, as its name in the stack says."""
    at: str = ""
    """Such as "number 41 of group default_pg"; empty without collective logs."""
    order: ProgramOrder = ProgramOrder.UNKNOWN
    """Where the few wait, seen from the many."""
    is_even: bool = False
    """As many differ as do not."""
    proof: Proof | None = None
    """The proof that the few are wrong; null where they are only fewer."""
    certain: bool = True
    """The ranks that wait are known to have entered, not only to have called."""
    is_partial: bool = False
    """Some members of these groups have no collective logs: they may differ, too."""


def find_split(positions: Positions, odd_rank: OddRank | None) -> Split | None:
    """Find the split that explains the wait, by collective logs where there are some."""
    logs = positions.collective_logs
    if logs is None:
        return _split_by_stacks(positions)
    return (
        _split_by_logs(positions, logs)
        or (_describe_odd_rank(positions, logs, odd_rank) if odd_rank else None)
        or _split_by_stray_call(positions, logs)
        or _split_by_stacks(positions)
    )


def _split_by_logs(positions: Positions, logs: CollectiveLogs) -> Split | None:
    """Find members of a group that called different things as the same number of it."""
    splits = []
    for name, by_log in logs.in_group.items():
        if len(by_log) > 1 and (found := _find_disagreement(logs, by_log)):
            splits.append(_describe(positions, logs, name, *found))
    return max(splits, key=lambda split: len(split.many), default=None)


def _find_disagreement(
    logs: CollectiveLogs, by_log: Mapping[str, Sequence[int]]
) -> tuple[int, dict[CallKind, list[int]]] | None:
    """Find the first number that not all ranks called alike and some rank is still in.

    Returns it with the ranks of each call. A call that is over for all its ranks hung none of them.
    """
    called: dict[int, dict[CallKind, list[int]]] = defaultdict(lambda: defaultdict(list))
    still_open: set[int] = set()
    for digest, ranks in by_log.items():
        log = logs.by_digest[digest]
        for record in log.records:
            called[record.number][compared(record, logs.groups[log.group].library)] += ranks
            if log.is_over(record.number) is not Over.YES:
                still_open.add(record.number)
    alike = {number: _join_unknown(called[number]) for number in still_open}
    number = min((n for n in still_open if len(alike[n]) > 1), default=None)
    return None if number is None else (number, alike[number])


def _join_unknown(called: Mapping[CallKind, list[int]]) -> dict[CallKind, list[int]]:
    """Return the ranks by call, where a call of unknown sizes is that of others of its name."""
    joined: dict[CallKind, list[int]] = {}
    for call in sorted(called, key=lambda call: (not call[1], -len(called[call]))):
        operation, signature = call
        same = None if signature else next((c for c in joined if c[0] == operation), None)
        joined.setdefault(same or call, []).extend(called[call])
    return joined


def _describe(
    positions: Positions,
    logs: CollectiveLogs,
    group: str,
    number: int,
    called: dict[CallKind, list[int]],
) -> Split:
    calls = sorted(called, key=lambda call: (-len(called[call]), min(called[call])))
    is_even = len(called[calls[0]]) <= sum(len(called[call]) for call in calls[1:])
    usual = _find_usual_call(logs, group, number) if is_even and len(calls) == 2 else None
    if usual in calls:
        calls.sort(key=lambda call: call != usual)
        is_even = False
    few = _positions(positions, [rank for call in calls[1:] for rank in called[call]])
    many = _positions(positions, called[calls[0]])
    order = compare_positions(few[0], many)
    same_operation = calls[1][0] == calls[0][0]
    known = _is_called_by(logs, group, many[0].rank, calls[1], number)
    return Split(
        ground=Ground.COLLECTIVE_LOGS,
        cause=_name_cause(order, same_operation=same_operation, known=known),
        few=few,
        many=many,
        few_call=_name_call(calls[1], with_signature=same_operation),
        many_call=_name_call(calls[0], with_signature=same_operation),
        at=f"number {number} of {describe_group(logs.groups[group])}",
        order=order,
        is_even=is_even,
        proof=Sign.OTHER_GROUPS if usual in calls else None,
    )


def _find_usual_call(logs: CollectiveLogs, group: str, number: int) -> CallKind | None:
    """Return what all other groups of equal role called as this number; null if they differ."""
    role = role_of(logs.groups[group])
    called = {
        compared(record, logs.groups[name].library)
        for name, by_log in logs.in_group.items()
        if name != group and role_of(logs.groups[name]) == role
        for digest in by_log
        for record in logs.by_digest[digest].records
        if record.number == number
    }
    return called.pop() if len(called) == 1 else None


def _is_called_by(logs: CollectiveLogs, group: str, rank: int, call: CallKind, number: int) -> bool:
    """Return whether a rank calls this at other places in its order: then it is not a stray
    call."""
    log = logs.log_of(rank, group)
    return log is not None and any(
        compared(record, logs.groups[group].library) == call
        for record in log.records
        if record.number != number
    )


def _name_cause(order: ProgramOrder, *, same_operation: bool, known: bool) -> Cause:
    if same_operation:
        return Cause.MISMATCHED_COLLECTIVE
    if order in (ProgramOrder.LEFT_LOOP, ProgramOrder.IN_LOOP, ProgramOrder.FEWER_STEPS):
        return Cause.UNEVEN_INPUTS
    if known or order is ProgramOrder.SAME_LINE:
        return Cause.MISMATCHED_COLLECTIVE
    return Cause.UNEVEN_INPUTS if order is ProgramOrder.LATER else Cause.CONDITIONAL_COLLECTIVE


def _name_call(call: CallKind, *, with_signature: bool) -> str:
    operation, signature = call
    operation = operation or "collective"
    return f"{operation} of {signature}" if with_signature and signature else operation


def _describe_odd_rank(
    positions: Positions, logs: CollectiveLogs, odd_rank: OddRank
) -> Split | None:
    own = [point for point in odd_rank.end.points if odd_rank.rank in point.waiting]
    awaited = [point for point in odd_rank.end.points if odd_rank.rank in point.held_up_by]
    if not own or not awaited:
        return None
    point = max(awaited, key=lambda each: (len(each.waiting), -min(each.waiting)))
    stray = own[0].group is not None and not _is_known(logs, own[0], odd_rank.end.ranks)
    cause = Cause.MISMATCHED_COLLECTIVE
    if odd_rank.order in (ProgramOrder.LEFT_LOOP, ProgramOrder.IN_LOOP) or stray:
        cause = _name_cause(odd_rank.order, same_operation=False, known=False)
    return Split(
        ground=Ground.COLLECTIVE_LOGS,
        cause=cause,
        few=_positions(positions, [odd_rank.rank]),
        many=_positions(positions, point.waiting),
        few_call=name_point(own[0]),
        many_call=name_point(point),
        order=odd_rank.order,
        proof=odd_rank.proof,
        certain=odd_rank.end.certain,
        is_partial=any(each.unknown for each in odd_rank.end.points),
    )


def _split_by_stray_call(positions: Positions, logs: CollectiveLogs) -> Split | None:
    """Find, in a cycle over two groups, the side whose call the other side never makes."""
    for end in positions.graph.ends if positions.graph else ():
        points = [point for point in end.points if point.group is not None]
        if end.kind is not EndKind.CYCLE or len(points) != 2 or len(end.points) != 2:
            continue
        stray = [point for point in points if not _is_known(logs, point, end.ranks)]
        if len(stray) == 1 and not _is_usual(logs, stray[0]):
            other = points[1 - points.index(stray[0])]
            return _describe_stray(positions, stray[0], other, end.ranks)
    return None


def _is_known(logs: CollectiveLogs, point: WaitPoint, ranks: Sequence[int]) -> bool:
    """Return whether the ranks that have not come to a point make such calls otherwise."""
    assert point.group is not None
    for rank in point.missing:
        log = logs.log_of(rank, point.group.id) if rank in ranks else None
        if log and any(record.operation == point.operation for record in log.records):
            return True
    return False


def _is_usual(logs: CollectiveLogs, point: WaitPoint) -> bool:
    """Return whether other groups of the same kind make such calls: before the first call of a
    group, only those show it."""
    assert point.group is not None
    role = role_of(point.group)
    return any(
        record.operation == point.operation
        for name, by_log in logs.in_group.items()
        if name != point.group.id and role_of(logs.groups[name]) == role
        for digest in by_log
        for record in logs.by_digest[digest].records
    )


def _describe_stray(
    positions: Positions, stray: WaitPoint, other: WaitPoint, ranks: Sequence[int]
) -> Split:
    few = _positions(positions, [rank for rank in stray.waiting if rank in ranks])
    many = _positions(positions, other.waiting)
    order = compare_positions(few[0], many)
    return Split(
        ground=Ground.COLLECTIVE_LOGS,
        cause=_name_cause(order, same_operation=False, known=False),
        few=few,
        many=many,
        few_call=stray.operation or "collective",
        many_call=other.operation or "collective",
        order=order,
    )


def _split_by_stacks(positions: Positions) -> Split | None:
    """Compare where ranks wait, if all wait and no collective log shows for which rank.

    Many may wait for their devices, which are in a collective, while few are in a call that blocks
    its host. Other calls are queued: if a device is stuck, a host with a full queue waits in any
    line.
    """
    waiting = [item for item in positions.waiting if _shows_wait(item)]
    others = positions.at(Place.ELSEWHERE, Place.CANNOT_RUN, Place.ABSENT)
    if others or len(waiting) < len(positions.live) or len(waiting) < 2:
        return None
    if positions.graph is not None and positions.graph.ends:
        return None
    sites: dict[object, list[Position]] = defaultdict(list)
    for item in waiting:
        assert item.reading is not None
        lines = tuple((frame.file, frame.line) for frame in site_of(item))
        sites[item.reading.what, lines].append(item)
    if len(sites) != 2 or any(_is_between_two(item) for item in waiting):
        return None
    many, few = sorted(sites.values(), key=lambda items: (-len(items), items[0].rank))
    order = compare_positions(few[0], many)
    few_call, many_call = _call_of(few[0]), _call_of(many[0])
    is_meeting = any(word in few_call.lower() for word in MEETINGS)
    blocks_host = any(word in few_call.lower() for word in BLOCKING)
    if not all(map(_waits_by_name, few if blocks_host else waiting)):
        return None
    return Split(
        ground=Ground.STACKS,
        cause=_name_stack_cause(order, is_meeting=is_meeting, same_call=few_call == many_call),
        few=tuple(few),
        many=tuple(many),
        few_call=few_call,
        many_call=many_call,
        is_meeting=is_meeting,
        order=order,
        is_even=len(few) == len(many),
    )


MEETINGS = ("barrier", "wait", "sync")
"""Words in the names of calls that carry no data: a stray one is a meeting that others never come
to, whereas two calls with data are more likely made in the wrong order."""

BLOCKING = ("barrier", "object")
"""Words in the names of calls that block their host until all ranks have come, on devices, too."""

TRANSFERS = ("send", "recv", "receive", "p2p", "work.wait")
"""Words in the names of calls between two ranks, or of any work: it may be a message, too."""


def _name_stack_cause(order: ProgramOrder, *, is_meeting: bool, same_call: bool) -> Cause:
    if order in (ProgramOrder.LEFT_LOOP, ProgramOrder.IN_LOOP):
        return Cause.UNEVEN_INPUTS
    if order is ProgramOrder.LATER and is_meeting:
        return Cause.UNEVEN_INPUTS
    if same_call or is_meeting:
        return Cause.CONDITIONAL_COLLECTIVE
    return Cause.MISMATCHED_COLLECTIVE


def _shows_wait(position: Position) -> bool:
    return _waits_by_name(position) or (position.waits_for_device and position.unchanged)


def _waits_by_name(position: Position) -> bool:
    return position.frame_class.traits.shows_wait_for_ranks and position.unchanged


def _is_between_two(position: Position) -> bool:
    """Return whether a rank waits for one other: stages of a pipeline differ for good reason."""
    call = _call_of(position).lower()
    return any(word in call for word in TRANSFERS)


def _call_of(position: Position) -> str:
    if position.waits_for_device and not _waits_by_name(position):
        return DEVICE_WAIT
    return position.reading.what if position.reading else ""


def _positions(positions: Positions, ranks: Iterable[int]) -> tuple[Position, ...]:
    return tuple(positions.by_rank[rank] for rank in sorted(ranks))


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
