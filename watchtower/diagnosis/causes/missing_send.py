"""A rank has left out a message that its peer still waits for, and has gone on."""

from __future__ import annotations

from collections.abc import Sequence

from watchtower.diagnosis import doubts
from watchtower.diagnosis.accusation import Accusation, Reason, ReasonKind, Tier
from watchtower.diagnosis.doubts import Doubt
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.reasons import LOG_WEIGHT, stack_reason
from watchtower.diagnosis.subjects import MissingSends
from watchtower.diagnosis.waits.messages import MissingSend
from watchtower.diagnosis.waits.mismatches import Ground
from watchtower.wire.verdict import Cause

AHEAD_WEIGHT = 0.5
"""The sender is past the place where it should have sent."""


def find(picture: Picture) -> Accusation | None:
    """Accuse the senders that are past a message which is still waited for."""
    missing = picture.missing_sends
    split = picture.split if missing else None
    if not missing or (split is not None and split.ground is Ground.COLLECTIVE_LOGS):
        return None  # or the messages are not sent because a rank is in another call
    most = max(len(each.proofs) for each in missing)
    missing = tuple(each for each in missing if len(each.proofs) == most)
    # Both ends of an exchange may look ahead of each other: then neither is named for sure.
    crossed = {each.sender for each in missing} & {each.receiver for each in missing}
    reasons: list[Reason] = []
    for each in missing:
        pair = (each.sender, each.receiver)
        reasons.append(Reason(ReasonKind.MESSAGE, LOG_WEIGHT, pair, each))
        reasons.append(Reason(ReasonKind.AHEAD, AHEAD_WEIGHT, (each.sender,), each))
    for rank in (missing[0].sender, missing[0].receiver):
        reasons += stack_reason(picture.by_rank[rank])
    senders = dict.fromkeys(each.sender for each in missing)
    return Accusation(
        cause=Cause.MISSING_SEND,
        tier=Tier.WAIT_FOR,
        suspects=tuple(picture.by_rank[sender] for sender in senders),
        reasons=tuple(reasons),
        doubts=_find_doubts(picture, missing, is_crossed=bool(crossed)),
        advice=("find_send", "every_receive_needs_a_send"),
        about=MissingSends(missing),
    )


def _find_doubts(
    picture: Picture, missing: Sequence[MissingSend], *, is_crossed: bool
) -> tuple[Doubt, ...]:
    logs = picture.collective_logs
    is_queued = logs is not None and any(each.receiver in logs.queued for each in missing)
    crossed = (doubts.BOTH_AHEAD,) if is_crossed else ()
    return (*crossed, doubts.OTHER_SENDS) if is_queued else crossed
