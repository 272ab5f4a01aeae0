"""Ranks that had waited for a peer until they, or their launcher, gave up."""

from __future__ import annotations

from watchtower.core.diagnosis.position import Place, Position
from watchtower.core.diagnosis.waits.positions import Positions
from watchtower.core.reading.exits import DeathKind, classify_ending, classify_exception
from watchtower.core.reading.frames import WAITING_CLASSES

GIVING_UP = frozenset(
    {
        DeathKind.OWN_EXCEPTION,
        DeathKind.CONSEQUENTIAL,
        DeathKind.EXIT_ONE,
        DeathKind.ABORTED,
        DeathKind.TERMINATED,
    }
)
"""Ends of ranks that ran out of patience, or whose launcher did, whatever their last words are."""


def find_gave_up(positions: Positions) -> tuple[Position, ...]:
    """List those that waited in this stall and do no more, while a rank that lives was elsewhere.

    A timeout ends those who wait, long before the one they wait for. Some of them stay for a while
    without a stack, in the destructors of native code, and only their pages tell what they raised.
    """
    if not positions.at(Place.ELSEWHERE, Place.CANNOT_RUN):
        return ()
    ended = [
        item
        for item in positions.ended
        if item.frame_class in WAITING_CLASSES and classify_ending(item.evidence.ended) in GIVING_UP
    ]
    return (*ended, *filter(_raised_of_waiting, positions.at(Place.UNSEEN)))


def _raised_of_waiting(position: Position) -> bool:
    """Return whether the page of a rank without a stack tells of a broken or timed out wait."""
    beat = position.evidence.beat
    if position.reading is not None or beat is None or not beat.exception_type:
        return False
    kind = classify_exception(beat.exception_type, beat.exception_text)
    return kind is DeathKind.CONSEQUENTIAL
