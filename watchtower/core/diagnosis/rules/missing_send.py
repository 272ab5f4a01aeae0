"""A rank has left out a message that its peer still waits for, and has gone on."""

from __future__ import annotations

from watchtower.core.diagnosis.evidence_wording import accuse, name_rank, stack_evidence, where_of
from watchtower.core.diagnosis.finding import Finding, Tier
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.waits.messages import MissingSend
from watchtower.core.diagnosis.waits.mismatches import Ground
from watchtower.core.diagnosis.waits.wording import RECORD_WEIGHT
from watchtower.core.diagnosis.weighing import DOUBT_CEILING, weigh
from watchtower.core.phrases import join_words, say_duration
from watchtower.core.ranksets import count_ranks, format_ranks
from watchtower.wire.verdict import Cause, Evidence

AHEAD_WEIGHT = 0.5
"""The sender is past the place where it should have sent."""


def find(picture: Picture) -> Finding | None:
    """Accuse the senders that are past a message which is still waited for."""
    missing = picture.missing_sends
    split = picture.split if missing else None
    if not missing or (split is not None and split.ground is Ground.RECORDS):
        return None  # or the messages are not sent because a rank is in another call
    most = max(len(each.reasons) for each in missing)
    missing = tuple(each for each in missing if len(each.reasons) == most)
    # Both ends of an exchange may look ahead of each other: then neither is named for sure.
    crossed = {each.sender for each in missing} & {each.receiver for each in missing}
    first = missing[0]
    sender = picture.by_rank[first.sender]
    evidence = [item for each in missing for item in _quote(each)]
    evidence += stack_evidence(sender) + stack_evidence(picture.by_rank[first.receiver])
    waiting = picture.waiting_without(each.sender for each in missing)
    return Finding(
        cause=Cause.MISSING_SEND,
        tier=Tier.WAIT_FOR,
        confidence=weigh(evidence, ceiling=DOUBT_CEILING if crossed else 1.0),
        suspects=tuple(
            accuse(picture.by_rank[each.sender], Cause.MISSING_SEND, _why(each))
            for each in {each.sender: each for each in missing}.values()
        ),
        summary=(
            f"{name_rank(sender)} {_why(first)}; {count_ranks(len(waiting))} wait, for "
            f"{say_duration(sender.age_s)}"
        ),
        evidence=tuple(evidence),
        next_steps=(
            f"read what leads to {where_of(sender) or 'its stack'} on rank {first.sender}: which "
            f"path leaves out the send to rank {first.receiver}",
            "every receive of a pipeline stage needs its send on the neighbour, also for empty or "
            "skipped batches",
        ),
    )


def _why(missing: MissingSend) -> str:
    return (
        f"has not sent message {missing.number} to rank {missing.receiver}, which waits for it, "
        f"and has gone on: {join_words(missing.reasons)}"
    )


def _quote(missing: MissingSend) -> tuple[Evidence, ...]:
    ranks = format_ranks((missing.sender, missing.receiver))
    return (
        Evidence(
            source="records",
            text=f"rank {missing.receiver} waits in recv for message {missing.number} of rank "
            f"{missing.sender}, which has begun {missing.number - 1} sends to it",
            ranks=ranks,
            weight=RECORD_WEIGHT,
        ),
        Evidence(
            source="order",
            text=f"rank {missing.sender}: {join_words(missing.reasons)}",
            ranks=str(missing.sender),
            weight=AHEAD_WEIGHT,
        ),
    )
