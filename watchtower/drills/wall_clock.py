"""A wall clock for the drill only, because the real one is shared by the whole machine.

Tower, agents and ranks are started with a small preloaded library, compiled at once. It adds a
number of seconds to the C library's time of day.
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
    """Compiles the library. Raises DrillError without a C compiler."""

    def __init__(self, folder: Path) -> None:
        self._library = folder / "wall_clock.so"
        self._shared = folder / "wall_clock.offset"
        self._offset_s = 0
        self._shared.write_bytes(SECONDS.pack(0))
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise DrillError(
                "this drill needs a C compiler for its own wall clock",
                "install gcc, or skip this drill",
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
        """Return the environment variables of a process that reads this clock."""
        return {"LD_PRELOAD": str(self._library), "WATCHTOWER_DRILL_CLOCK": str(self._shared)}

    def shift(self, seconds: float) -> None:
        """Set the clock forward or back at once, for every process that reads it."""
        self._offset_s += round(seconds)
        with self._shared.open("r+b") as file:  # mapped by other processes, so never truncated
            file.write(SECONDS.pack(self._offset_s))
