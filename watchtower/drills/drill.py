"""What a drill is: its setup, and the story that is told with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from watchtower.drills.scene import Scene
from watchtower.drills.setup import DrillSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill(DrillSetup):
    """One drill. `act` tells the story."""

    act: Callable[[Scene], None]
