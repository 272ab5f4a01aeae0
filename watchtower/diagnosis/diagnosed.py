"""The result of a diagnosis. Detection, tower and store use it; `diagnosis` makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from watchtower.wire.verdict import (
    Alternative,
    Cause,
    Domain,
    Doubt,
    Evidence,
    SharedCause,
    Suspect,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The result of diagnosing one case, without the job's status and times."""

    cause: Cause
    confidence: float
    suspects: tuple[Suspect, ...]
    summary: str
    """One line, short enough for an alert, without the job's name."""
    waiting: str
    """The ranks that wait for the suspects, as a rank set such as "0-36,38"."""
    step: int | None
    """Highest step that every rank with heartbeats has made; None if that is not known."""
    stalled_for_s: float
    evidence: tuple[Evidence, ...] = ()
    missing_evidence: tuple[str, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    next_steps: tuple[str, ...] = ()
    lasting_steps: tuple[str, ...] = ()
    """Those of `next_steps` that stay useful when the processes of the suspects have ended."""
    suspects_moving: bool = False
    """At least one suspect computes or moves bytes. Of several faults, this is about one without
    movement, if there is one. If the confidence is below `MIN_CONFIDENCE`, it is about the
    candidates."""
    suspects_work: bool = False
    """Two dumps show of every one of them that it goes on: it is in another function, or it waits
    and computes in turn."""
    suspects_transfer: bool = False
    """At least one suspect moves bytes through the network."""
    is_shown_by_gpus: bool = False
    """All hosts wait for their devices, and the GPU of the suspect alone works or is idle."""
    suspects_rest: bool = False
    """Two dumps show the host of every suspect at one place, and it moves no data: it does nothing
    but wait, whatever its GPU does."""
    peers_waiting: bool = False
    """At least one live rank waits in a collective that the suspects have not entered."""
    waiting_text: str = ""
    """The number of waiting ranks, in the words of the summary: "3 ranks seem to wait for it".
    Empty if no rank waits."""
    doubts: tuple[Doubt, ...] = ()
    """The reasons why the confidence is not higher, the strongest first. If the cause is unknown:
    of the first alternative."""
    why_not: str = ""
    """The reason why the case was not diagnosed; empty if it was."""
    suspect_class: str = ""
    """Frame class of the top suspect or candidate: "dataloader", "checkpoint", "compile", ..."""
    suspect_wait: str = ""
    """Class of what the top suspect waits for in the kernel ("lock", "pipe", "file", "nfs",
    "network", "sleep", ...). A wait for its own thread or child is the wait of that one. Empty if
    it is not known, or if it is a wait for other ranks."""
    suspect_wait_s: float | None = None
    """Seconds after which that wait ends by itself, by the latest dump; None if it is not known, or
    if it does not end."""
    has_given_up: bool = False
    """The job has ended, and what its ranks wrote shows for which suspects they waited until they
    gave up."""
    domain: Domain = Domain.UNKNOWN
    """Whom to call, from the cause and the evidence."""
    shared_cause: SharedCause | None = None
    """The cause of this hang, if other jobs may have the same one: a mount, for example."""
    collective_timeout_s: float | None = None
    """The shortest timeout of a collective that is not complete; None if it is not known."""
    unlogged: tuple[int, ...] = ()
    """Live ranks whose collective logs were not read, although those of others were. Another dump
    may have them."""
    places: Mapping[str, int] = field(default_factory=dict)
    """Number of ranks by where they are: "waiting" for other ranks, "device" (waiting for their
    devices), "elsewhere", "ended", "unseen"."""
    coverage: Mapping[str, float] = field(default_factory=dict)
    """Share of the live ranks, 0 to 1, from which each source of evidence comes, as
    `measure_coverage` names them. Labels of a series."""

    @property
    def lacks_logs(self) -> bool:
        """Whether the cause is unknown, and collective logs that may show it are missing."""
        return self.cause is Cause.UNKNOWN and bool(self.unlogged)


def not_diagnosed(stalled_for_s: float, why_not: str) -> Diagnosis:
    """Return a diagnosis with an unknown cause, for a case that could not be diagnosed."""
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
