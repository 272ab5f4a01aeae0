"""A drill: its setup and its actions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from watchtower.drills.drill_run import DrillRun
from watchtower.drills.setup import DrillSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill(DrillSetup):
    """One drill. `act` is called with each run of it."""

    act: Callable[[DrillRun], None]
