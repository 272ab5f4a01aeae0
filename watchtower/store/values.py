"""Values that the store contains, independent of the database. Times are UNIX seconds."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.core.fleet.generation import PastGeneration
from watchtower.core.fleet.pace import Pause
from watchtower.wire.dumps import SentBatch
from watchtower.wire.verdict import Status, Verdict, VerdictEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """The acknowledgement of an incident. Its alerts do not fire."""

    at: float
    by: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One hang, or one end of a job for which the verdict names a suspect."""

    id: str
    job: str
    generation: int
    status: Status
    opened_at: float
    updated_at: float
    verdict: Verdict
    closed_at: float | None = None
    evidence: bytes | None = None
    """The case of the verdict as JSON; None in lists of incidents."""
    ack: Ack | None = None
    verdicts: tuple[VerdictEntry, ...] = ()
    """All verdicts of this stall with their times, oldest first. `verdict` is the current one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """A job whose alerts do not fire until `until`. It is monitored as before."""

    job: str
    since: float
    until: float
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpRow:
    """One batch of dumps and the time at which it was taken."""

    sent: SentBatch
    taken_at: float


@dataclass(frozen=True, slots=True)
class GenerationRow:
    """The last attempt of a job."""

    job: str
    past: PastGeneration
    seen_at: float


@dataclass(frozen=True, slots=True)
class PauseRow:
    """A learned pause of a job."""

    job: str
    pause: Pause


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupState:
    """The stored state that a starting tower needs."""

    pauses: dict[str, tuple[Pause, ...]]
    """By job name."""
    generations: dict[str, PastGeneration]
    """The last attempt, by job name."""
    incidents: tuple[Incident, ...]
    """Open incidents with their cases, and each job's latest incident if the job ended in it,
    oldest first."""
    silences: tuple[Silence, ...] = ()
