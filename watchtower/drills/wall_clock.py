"""A wall clock of the drill's own: the real one belongs to everybody on the machine.

Tower, agents and ranks are started with a small preloaded library, compiled on the spot, that adds
a number of seconds to what the C library says the time of day is.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

from watchtower.drills.children import FIXTURES
from watchtower.drills.errors import DrillError

SOURCE = FIXTURES / "wall_clock.c"
COMPILE_DEADLINE_S = 60.0
SECONDS = struct.Struct("<q")


class WallClock:
    """Compiles the library; raises DrillError where there is no C compiler."""

    def __init__(self, folder: Path) -> None:
        self._library = folder / "wall_clock.so"
        self._shared = folder / "wall_clock.offset"
        self._offset_s = 0
        self._shared.write_bytes(SECONDS.pack(0))
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise DrillError(
                "a wall clock of its own needs a C compiler", "install gcc, or leave this drill out"
            )
        done = subprocess.run(
            [compiler, "-O1", "-shared", "-fPIC", "-o", str(self._library), str(SOURCE), "-ldl"],
            capture_output=True,
            text=True,
            timeout=COMPILE_DEADLINE_S,
            check=False,
        )
        if done.returncode:
            raise DrillError(f"{compiler} cannot compile {SOURCE.name}", done.stderr)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in order to read this clock."""
        return {"LD_PRELOAD": str(self._library), "WATCHTOWER_DRILL_CLOCK": str(self._shared)}

    def shift(self, seconds: float) -> None:
        """Set the clock forward or back, for every process that reads it, at once."""
        self._offset_s += round(seconds)
        with self._shared.open("r+b") as file:  # mapped by others: never truncated
            file.write(SECONDS.pack(self._offset_s))
