"""Effects: the actions that `incidents` requests, as data. The tower performs them in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from watchtower.jobs.pace import Pause
from watchtower.jobs.ranks import LaunchKey
from watchtower.wire.verdict import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpsWanted:
    """Order dumps of every rank that was not dumped in this stall, or of all ranks again."""

    reason: str
    again: bool = False
    """True: order dumps also of ranks that were already dumped in this stall."""
    sample: bool = False
    """True: one cheap dump of each rank, only to record its position (see `samples`)."""
    spread_s: float = 0.0
    """Each agent begins at a random moment of this many seconds. Agents of a large job spread their
    dumps over the jitter of `dump_timing` in any case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisWanted:
    """Diagnose the present case and pass the result to `AttemptWatch.take_diagnosis`."""


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
    """The open incident is over: the job made a step again or ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseLearned:
    """Store a pause, so that the tower does not alert about its kind again after a restart."""

    pause: Pause


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptBegun:
    """The keeper watches another attempt of its job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreWanted:
    """Store owner, processes and typical step of the job, if they have changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallWanted:
    """Read the dumps of the current stall that are stored and not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesWanted:
    """Order what these ranks of an incident did in the last 15 minutes."""

    incident: str
    suspects: tuple[int, ...]
    ranks: Mapping[LaunchKey, tuple[int, ...]]
    """All traced ranks of each launch with one that is due."""


Effect = (
    DumpsWanted
    | DiagnosisWanted
    | StatusChanged
    | IncidentOpened
    | IncidentUpdated
    | IncidentClosed
    | PauseLearned
    | AttemptBegun
    | StoreWanted
    | RecallWanted
    | SeriesWanted
)
