"""Values that the store contains, independent of the database. Times are UNIX seconds."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from watchtower.evidence.case import Case
from watchtower.incidents.incident import Feedback, Incident, Silence
from watchtower.jobs.attempt import PastAttempt
from watchtower.jobs.pace import Pause
from watchtower.wire.dumps import SentBatch
from watchtower.wire.series import SeriesBatch
from watchtower.wire.verdict import Domain

MAX_RECALLED = 10_000
"""Answers that a starting tower reads, the newest ones: one for each stored incident by default."""


log = logging.getLogger("watchtower.store")


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpRow:
    """One batch of dumps and the time at which it was taken."""

    sent: SentBatch
    taken_at: float


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """The last attempt of a job."""

    job: str
    past: PastAttempt
    seen_at: float


@dataclass(frozen=True, slots=True)
class PauseRow:
    """A learned pause of a job."""

    job: str
    pause: Pause


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRow:
    """The state of an incident that a destination must show, and the one that it has received."""

    destination: str
    incident: str
    alert: str
    """The current alert as JSON."""
    version: int
    """Version of that alert. It grows with every change."""
    delivered: int
    """Version that was delivered; 0 before the first delivery."""
    receipt: str
    """The text that the destination returned for its last delivery, such as the id of a message."""
    updated_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """The node of all ranks that the verdicts on an incident have named."""

    incident: str
    node: str
    domain: Domain
    opened_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """The nodes of the ranks that the current verdict on an incident names."""

    incident: str
    nodes: tuple[str, ...]
    opened_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupState:
    """The stored state that a starting tower needs."""

    pauses: dict[str, tuple[Pause, ...]]
    """By job name."""
    attempts: dict[str, PastAttempt]
    """The last attempt, by job name."""
    incidents: tuple[Incident, ...]
    """Open incidents with their cases, and each job's latest incident if the job ended in it,
    oldest first."""
    silences: tuple[Silence, ...] = ()
    alerts: tuple[AlertRow, ...] = ()
    """Alerts that are not over, or whose end was not delivered."""
    blames: tuple[Blame, ...] = ()
    """The latest incidents with one node to blame, oldest first; none of shadow mode or drills."""
    named: tuple[Named, ...] = ()
    """The latest incidents that name ranks, oldest first; none of shadow mode or drills."""
    feedback: tuple[Feedback, ...] = ()
    """The newest answers about verdicts, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesRow:
    """The series of one launch on one node for an incident."""

    incident: str
    node: str
    launch: str = ""
    """As in the message."""
    sharer: str
    """Owner of the job, whose share of the store it uses."""
    taken_at: float
    """Time of the last points, in UNIX seconds."""
    body: bytes
    """The undecoded message."""

    def batch(self) -> SeriesBatch | None:
        """Return the decoded message; None if another release wrote it and it is unreadable."""
        try:
            return _SERIES.decode(self.body)
        except (msgspec.MsgspecError, RecursionError):
            return None


_CASES = msgspec.json.Decoder(Case)
_SERIES = msgspec.json.Decoder(SeriesBatch)


def read_case(incident: Incident) -> Case | None:
    """Return the evidence of an incident; None if it is missing or unreadable."""
    if incident.evidence is None:
        return None
    try:
        return _CASES.decode(incident.evidence)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        warn_once(incident.id, "evidence", str(error))
        return None


@lru_cache(maxsize=1024)
def warn_once(whose: str, what: str, error: str) -> None:
    """Log that a stored value is unreadable, once for each."""
    log.warning("cannot read the %s of %s in the store, it is left out: %s", what, whose, error)
