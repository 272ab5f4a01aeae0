"""Source of waits: ranks that had waited for a peer until they, or their launcher, gave up."""

from __future__ import annotations

from watchtower.diagnosis.position import Place, Position
from watchtower.diagnosis.waits.positions import Known
from watchtower.evidence.exits import DeathKind, classify_ending, classify_exception

GIVING_UP = frozenset(
    {
        DeathKind.OWN_EXCEPTION,
        DeathKind.CONSEQUENTIAL,
        DeathKind.EXIT_ONE,
        DeathKind.ABORTED,
        DeathKind.TERMINATED,
    }
)
"""How a rank ends after its own timeout or its launcher's, whatever its last words are."""

GAVE_UP = "a rank that gave up"


def find_waits_given_up(positions: Known) -> Known:
    """Add the ranks that waited in this stall and have ended, while a live rank was elsewhere.

    A timeout ends the ranks that wait, long before the one they wait for. Some of them stay for a
    while without a stack, in the destructors of native code: then only the exception in their
    heartbeat shows that they waited.
    """
    if not positions.at(Place.ELSEWHERE, Place.CANNOT_RUN):
        return positions
    ended = [
        item
        for item in positions.ended
        if item.frame_class.traits.waits_for_ranks
        and classify_ending(item.evidence.ended) in GIVING_UP
    ]
    raised = filter(_raised_of_waiting, positions.at(Place.UNSEEN))
    return positions.with_edge(GAVE_UP, (item.rank for item in (*ended, *raised)))


def _raised_of_waiting(position: Position) -> bool:
    """Return whether a rank without a stack has reported a broken or timed out wait."""
    beat = position.evidence.beat
    if position.reading is not None or beat is None or not beat.exception_type:
        return False
    kind = classify_exception(beat.exception_type, beat.exception_text)
    return kind is DeathKind.CONSEQUENTIAL
