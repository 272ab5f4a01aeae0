"""What a diagnosis concludes: the value that detection, tower and store use.

How it is made is in `core/diagnosis`.
"""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.wire.verdict import Alternative, Cause, Evidence, SharedCause, Suspect


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What a case says, without the job's status and times."""

    cause: Cause
    confidence: float
    suspects: tuple[Suspect, ...]
    summary: str
    """One line a pager can show; without the job's name."""
    waiting: str
    """Rank set of those that wait for the suspects."""
    step: int | None
    """Lowest step that every rank with heartbeats has made."""
    stalled_for_s: float
    evidence: tuple[Evidence, ...] = ()
    missing_evidence: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    next_steps: tuple[str, ...] = ()
    suspects_moving: bool = False
    """Some suspect computes or moves bytes. Below `MIN_CONFIDENCE`: some candidate."""
    suspects_transfer: bool = False
    """Some suspect moves bytes through the network."""
    peers_waiting: bool = False
    """At least one live rank waits in a collective that the suspects have not entered."""
    said_waiting: str = ""
    """How many ranks wait, in the summary's words: "3 ranks seem to wait for it". Empty if none."""
    doubts: tuple[str, ...] = ()
    """Why the confidence is not higher, one clause each."""
    why_not: str = ""
    """Reason if the case was not diagnosed, else empty."""
    suspect_class: str = ""
    """Frame class of the top suspect or candidate: "dataloader", "checkpoint", "compile", ..."""
    shared_cause: SharedCause | None = None
    """What holds up the job and may hold up other jobs, too."""


def not_diagnosed(stalled_for_s: float, why_not: str) -> Diagnosis:
    """Return what is left to say without a diagnosis: that, and that the job stands still."""
    return Diagnosis(
        cause=Cause.UNKNOWN,
        confidence=0.0,
        suspects=(),
        summary=f"not diagnosed: {why_not}",
        waiting="",
        step=None,
        stalled_for_s=stalled_for_s,
        missing_evidence=(f"the diagnosis: {why_not}",),
        why_not=why_not,
    )
