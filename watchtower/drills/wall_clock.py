"""A wall clock for the drill only, because the real one is shared by the whole machine.

Tower, agents and ranks are started with a small preloaded library, compiled at once. It adds a
number of seconds to the C library's time of day.
"""

from __future__ import annotations

import struct
from pathlib import Path

from watchtower.drills.children import FIXTURES
from watchtower.drills.compiling import compile_library

SOURCE = FIXTURES / "wall_clock.c"
SECONDS = struct.Struct("<q")


class WallClock:
    """Compiles the library. Raises DrillError without a C compiler."""

    def __init__(self, folder: Path) -> None:
        self._library = folder / "wall_clock.so"
        self._shared = folder / "wall_clock.offset"
        self._offset_s = 0
        self._shared.write_bytes(SECONDS.pack(0))
        compile_library(SOURCE, self._library, "-ldl")

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables of a process that reads this clock."""
        return {"LD_PRELOAD": str(self._library), "WATCHTOWER_DRILL_CLOCK": str(self._shared)}

    def shift(self, seconds: float) -> None:
        """Set the clock forward or back at once, for every process that reads it."""
        self._offset_s += round(seconds)
        with self._shared.open("r+b") as file:  # mapped by other processes, so never truncated
            file.write(SECONDS.pack(self._offset_s))
