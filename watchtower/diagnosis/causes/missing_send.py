"""A rank has left out a message that its peer still waits for, and has gone on."""

from __future__ import annotations

from collections.abc import Sequence

from watchtower.diagnosis.accusation import CANDIDATE, Accusation, Doubt, Reason, Tier, of_rank
from watchtower.diagnosis.domain import Line
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.diagnosis.reasons import LOG_WEIGHT, stack_reason
from watchtower.diagnosis.waits.mismatches import (
    AheadOfExchange,
    FurtherStep,
    GoneOn,
    Ground,
    MissingSend,
    ReceivedMore,
    WaitsIn,
)
from watchtower.diagnosis.words import name_rank
from watchtower.wire.verdict import Cause, Domain
from watchtower.writing.text import count_ranks, format_duration, join_sentences, join_words

WHOM = (Line(Domain.USER_CODE),)

AHEAD_WEIGHT = 0.5
"""The sender is past the place where it should have sent."""

OTHER_SENDS = Doubt(
    "other_sends", 0.75, "the message may have been sent by isend(), which is not counted"
)
BOTH_AHEAD = Doubt(
    "both_ahead", CANDIDATE, "both ends of the exchange seem to be ahead of each other"
)

FIND_SEND = (
    "read the code that leads to {place} on rank {rank}: which path skips the send to rank "
    "{receiver}?"
)
EVERY_RECEIVE_NEEDS_A_SEND = (
    "every receive of a pipeline stage needs a send from its neighbour, also for empty or skipped "
    "batches"
)


def find(picture: Picture) -> Accusation | None:
    """Accuse the senders that are past a message which is still waited for."""
    missing = picture.missing_sends
    split = picture.split if missing else None
    if not missing or (split is not None and split.ground is Ground.COLLECTIVE_LOGS):
        return None  # or the messages are not sent because a rank is in another call
    most = max(len(each.proofs) for each in missing)
    missing = tuple(each for each in missing if len(each.proofs) == most)
    reasons: list[Reason] = []
    for each in missing:
        pair, sender = (each.sender, each.receiver), picture.by_rank[each.sender]
        reasons.append(Reason("records", LOG_WEIGHT, pair, _write_message(each)))
        reasons.append(of_rank("order", AHEAD_WEIGHT, sender, _write_gone_on(each)))
    for rank in (missing[0].sender, missing[0].receiver):
        reasons += stack_reason(picture.by_rank[rank])
    suspects = tuple(picture.by_rank[rank] for rank in dict.fromkeys(e.sender for e in missing))
    of_sender = {each.sender: each for each in missing}

    def why(position: Position) -> str:
        found = of_sender[position.rank]
        return join_sentences(
            f"has not sent message {found.number} to rank {found.receiver}, which waits for that "
            "message",
            f"rank {position.rank} is already past that send: {_write_gone_on(found)}",
        )

    first, waiting = suspects[0], picture.waiting_without(item.rank for item in suspects)
    verb = "has" if len(waiting) == 1 else "have"
    return Accusation(
        cause=Cause.MISSING_SEND,
        tier=Tier.WAIT_FOR,
        suspects=suspects,
        reasons=tuple(reasons),
        doubts=_find_doubts(picture, missing),
        why=why,
        summary=join_sentences(
            f"{name_rank(first)} {why(first)}",
            f"{count_ranks(len(waiting))} {verb} waited for {format_duration(first.age_s)}",
        ),
        advice=(FIND_SEND, EVERY_RECEIVE_NEEDS_A_SEND),
        names={"receiver": missing[0].receiver},
    )


def _find_doubts(picture: Picture, missing: Sequence[MissingSend]) -> tuple[Doubt, ...]:
    logs = picture.collective_logs
    is_queued = logs is not None and any(each.receiver in logs.queued for each in missing)
    # Both ends of an exchange may look ahead of each other: then neither is named for sure.
    is_crossed = {each.sender for each in missing} & {each.receiver for each in missing}
    crossed = (BOTH_AHEAD,) if is_crossed else ()
    return (*crossed, OTHER_SENDS) if is_queued else crossed


def _write_message(missing: MissingSend) -> str:
    sender, receiver = f"rank {missing.sender}", f"rank {missing.receiver}"
    return (
        f"{receiver} waits in recv for message {missing.number} from {sender}; "
        f"{sender} has begun {missing.number - 1} sends to {receiver}"
    )


def _write_gone_on(missing: MissingSend) -> str:
    """Return "it waits in all_reduce and it is at step 4, rank 2 is at step 3"."""
    return join_words([_write_proof(proof) for proof in missing.proofs])


def _write_proof(proof: GoneOn) -> str:
    if isinstance(proof, AheadOfExchange):
        return f"it waits for message {proof.number} from rank {proof.receiver}"
    if isinstance(proof, ReceivedMore):
        return f"it has received {proof.count} from rank {proof.peer}"
    if isinstance(proof, WaitsIn):
        return f"it waits in {proof.operation or 'a collective'}"
    assert isinstance(proof, FurtherStep)
    return f"it is at step {proof.step}, rank {proof.receiver} is at step {proof.step_of_receiver}"
