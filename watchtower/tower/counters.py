"""Counters of the tower's work since its start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals since the start, for /metrics."""

    reports: int = 0
    dumps: int = 0
    diagnoses: int = 0
    incidents: int = 0
    failed_ticks: int = 0
    last_tick_at: float = 0.0
    last_tick_s: float = 0.0
