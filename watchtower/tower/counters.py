"""Counters of the tower's work since its start."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate

from watchtower.incidents.incident import Incident
from watchtower.wire.drills import is_drill
from watchtower.wire.verdict import Cause


@dataclass(slots=True)
class Durations:
    """How many durations were at most as long as each of some bounds."""

    bounds_s: tuple[float, ...]
    """Ascending, in seconds."""
    total_s: float = 0.0
    _counts: list[int] = field(default_factory=list)

    def observe(self, seconds: float) -> None:
        """Add one duration."""
        if not self._counts:
            self._counts = [0] * (len(self.bounds_s) + 1)
        self._counts[bisect_left(self.bounds_s, seconds)] += 1
        self.total_s += seconds

    def cumulated(self) -> list[tuple[str, float]]:
        """Return each bound as text, the last one "+Inf", with the number of durations up to it."""
        names = [*(f"{bound:g}" for bound in self.bounds_s), "+Inf"]
        counts = self._counts or [0] * len(names)
        return list(zip(names, map(float, accumulate(counts)), strict=True))


@dataclass(slots=True)
class Counters:
    """Totals since the start, for /metrics."""

    reports: int = 0
    early_reports: int = 0
    """Reports that were answered and not processed, because they came too early."""
    dumps: int = 0
    diagnoses: int = 0
    incidents: Counter[Cause] = field(default_factory=Counter)
    """Incidents opened, by the cause that was known at the opening, and incidents that left shadow
    mode, by the cause that was known then. Drills do not count."""
    shadow_incidents: Counter[Cause] = field(default_factory=Counter)
    """Incidents opened in shadow mode."""
    failed_ticks: int = 0
    lost_rank_seconds: float = 0.0
    """Sum over all jobs but drills: seconds lost in hangs, times the number of ranks."""
    last_tick_at: float = 0.0
    last_tick_s: float = 0.0

    def count_incident(self, incident: Incident) -> None:
        """Count an incident that has just opened, or has just left shadow mode."""
        if not is_drill(incident.job):
            counts = self.shadow_incidents if incident.shadow else self.incidents
            counts[incident.verdict.cause or Cause.UNKNOWN] += 1
