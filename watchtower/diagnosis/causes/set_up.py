"""Process group set-up: ranks that never came, and ranks that keep the others waiting in it.

A rank that trains on a node without an agent seems to be missing, too: once any rank has stepped,
the missing ones must be there, and only unwatched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from watchtower.diagnosis import doubts
from watchtower.diagnosis.accusation import MAX_QUOTED, Accusation, Reason, ReasonKind, Tier
from watchtower.diagnosis.elsewhere import accuse_elsewhere, are_awaited
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Place, Position
from watchtower.diagnosis.reasons import peers_reason, ranks_of
from watchtower.diagnosis.subjects import NeverSeen, Ranks
from watchtower.evidence.frame_class import FrameClass
from watchtower.wire.verdict import Cause

MISSING_WEIGHT, SET_UP_WEIGHT, UNANSWERED_WEIGHT = 0.75, 0.5, 0.9

MAX_NAMED = 64
"""Suspects listed one by one; the summary has all of them as a rank set."""


def find_never_started(picture: Picture) -> Accusation | None:
    """Accuse the ranks of the world size that were never seen."""
    missing, in_init = picture.missing, _in_init(picture)
    if not missing or (not in_init and _has_stepped(picture.by_rank.values())):
        return None
    return Accusation(
        cause=Cause.NEVER_STARTED,
        tier=Tier.NEVER_CAME,
        suspects=missing[:MAX_NAMED],
        reasons=(
            Reason(ReasonKind.NOT_SEEN, MISSING_WEIGHT, ranks_of(missing), Ranks(missing)),
            *peers_reason(picture, missing),
        ),
        # More likely their nodes are not watched, or the world size is wrong.
        doubts=(doubts.MOST_MISSING,) if len(missing) > len(picture.live) else (),
        advice=("read_launcher_output", "check_agents"),
        about=NeverSeen(missing, tuple(in_init)),
    )


def find_init_stuck(picture: Picture) -> Accusation | None:
    """Accuse the ranks that are not in set-up while the others are, or the reverse.

    Among those in set-up, ranks whose connection is not answered are kept from the others.
    """
    in_init = _in_init(picture)
    if not in_init:
        return None
    unanswered = [item for item in in_init if item.unanswered]
    if unanswered and len(unanswered) < len(in_init):
        return _accuse_unanswered(picture, unanswered)
    if len(in_init) == len(picture.waiting):
        return _accuse_absent(picture, in_init)
    return _accuse_latecomers(picture, in_init)


def _in_init(picture: Picture) -> list[Position]:
    return [item for item in picture.waiting if item.frame_class is FrameClass.INIT]


def _has_stepped(positions: Iterable[Position]) -> bool:
    return any(item.step is not None for item in positions)


def _accuse_unanswered(picture: Picture, unanswered: Sequence[Position]) -> Accusation | None:
    reasons = [
        Reason(ReasonKind.UNANSWERED, UNANSWERED_WEIGHT, (item.rank,), item)
        for item in unanswered[:MAX_QUOTED]
    ]
    return accuse_elsewhere(
        picture,
        unanswered,
        Cause.INIT_STUCK,
        tier=Tier.NEVER_CAME,
        reasons=reasons,
        advice=("try_the_connection", "check_master"),
    )


def _accuse_absent(picture: Picture, in_init: Sequence[Position]) -> Accusation | None:
    absent = picture.at(Place.ELSEWHERE)
    weight = 0.0 if _has_stepped(picture.by_rank.values()) else SET_UP_WEIGHT
    return accuse_elsewhere(
        picture,
        absent,
        Cause.INIT_STUCK,
        tier=Tier.NEVER_CAME,
        reasons=[Reason(ReasonKind.SET_UP, weight)],
        advice=("look_before_it_joins", "check_master"),
        why_not=[doubts.MOST_OUTSIDE] if len(absent) > len(in_init) else [],
    )


def _accuse_latecomers(picture: Picture, in_init: Sequence[Position]) -> Accusation | None:
    if _are_kept(picture, in_init):
        return None
    further = len(picture.waiting) - len(in_init)
    # In the middle of a job it makes a group of its own.
    is_group = _has_stepped(picture.waiting)
    return accuse_elsewhere(
        picture,
        in_init,
        Cause.INIT_STUCK,
        tier=Tier.NEVER_CAME,
        advice=("create_groups_together", "create_groups_once")
        if is_group
        else ("look_before_it_joins", "check_master"),
        why_not=[doubts.LATECOMER if further > len(in_init) else doubts.MOST_LATECOMERS],
    )


def _are_kept(picture: Picture, in_init: Sequence[Position]) -> bool:
    """Return whether they may wait themselves: for a member of a new group that has not come.

    Collective logs do not show set-up, so only ranks that are elsewhere, or gone, are known.
    """
    if are_awaited(picture, in_init) and not picture.sinks:
        return False
    return bool(picture.at(Place.ELSEWHERE, Place.CANNOT_RUN, Place.ABSENT))
