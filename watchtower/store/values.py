"""Records of the store: plain values, the same for every database. Times are UNIX seconds."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.core.fleet.generation import PastGeneration
from watchtower.core.fleet.pace import Pause
from watchtower.wire.dumps import SentBatch
from watchtower.wire.verdict import Status, Verdict, VerdictEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """Somebody handles an incident: its alerts are off."""

    at: float
    by: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One hang, or one job that ended with a culprit."""

    id: str
    job: str
    generation: int
    status: Status
    opened_at: float
    updated_at: float
    verdict: Verdict
    closed_at: float | None = None
    evidence: bytes | None = None
    """The case of the verdict, as JSON; left out when many incidents are listed."""
    ack: Ack | None = None
    verdicts: tuple[VerdictEntry, ...] = ()
    """Every verdict of this stall with its time, the first one first; `verdict` is the one that
    stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """A job whose alerts are off until `until`. It is watched as before."""

    job: str
    since: float
    until: float
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpRow:
    """One batch of dumps and when it was taken."""

    sent: SentBatch
    taken_at: float


@dataclass(frozen=True, slots=True)
class GenerationRow:
    """The last generation of a job."""

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
    """What a starting tower needs to know of the past."""

    pauses: dict[str, tuple[Pause, ...]]
    """By job name."""
    generations: dict[str, PastGeneration]
    """The last generation by job name."""
    incidents: tuple[Incident, ...]
    """Open ones with their cases, and each job's latest one when it says how the job ended; oldest
    first."""
    silences: tuple[Silence, ...] = ()
