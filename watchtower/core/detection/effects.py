"""Effects: what `incidents` wants done, as data. The tower carries them out in order."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.core.fleet.pace import Pause
from watchtower.wire.verdict import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpsWanted:
    """Order dumps of every rank that has none of this stall, or of all ranks again."""

    reason: str
    again: bool = False
    """True: also of ranks that were dumped in this stall already."""
    sample: bool = False
    """One cheap round that only says where each rank is, see `samples`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisWanted:
    """Take a case now and diagnose it; the answer goes to `JobWatch.take_diagnosis`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusChanged:
    """The job's status changed."""

    before: Status
    after: Status
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentOpened:
    """Open an incident and store its case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentUpdated:
    """The open incident has a newer diagnosis or status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentClosed:
    """The open incident is over: the job stepped on or ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseLearned:
    """Remember a pause durably, so that a restart does not alarm about it again."""

    pause: Pause


Effect = (
    DumpsWanted
    | DiagnosisWanted
    | StatusChanged
    | IncidentOpened
    | IncidentUpdated
    | IncidentClosed
    | PauseLearned
)
