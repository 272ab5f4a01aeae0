"""Records of the store: plain values, the same for every database."""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.core.case import Case
from watchtower.core.fleet.generation import PastGeneration
from watchtower.core.fleet.pace import Pause
from watchtower.wire.verdict import Status, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One hang, or one job that ended with a culprit. Times are UNIX seconds (wall clock)."""

    id: str
    job: str
    generation: int
    status: Status
    opened_at: float
    updated_at: float
    verdict: Verdict
    closed_at: float | None = None
    case: Case | None = None
    """Evidence of the verdict; left out when many incidents are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What a starting tower needs to know of the past."""

    pauses: dict[str, tuple[Pause, ...]]
    """By job name."""
    generations: dict[str, PastGeneration]
    """The last generation by job name."""
    open_incidents: tuple[Incident, ...]
