"""Removes the folder of a drill when it is ended, or when the drill dies.

Run by path: python -I tidier.py FOLDER. A folder that something is still mounted in is left alone:
what is in there may belong to others, and a file system that hangs would keep us too.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from pathlib import Path

DEADLINE_S = 5.0
"""The parts of the drill end at the same time and may write, or be mounted, until then."""

AGAIN_S = 0.1


def main() -> None:
    """Wait to be ended, then remove until nothing is left."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    folder = Path(sys.argv[1])
    print("ready", json.dumps({}), flush=True)
    signal.sigwait({signal.SIGTERM})
    until = time.monotonic() + DEADLINE_S
    while folder.exists() and time.monotonic() < until:
        if not has_mount(folder):
            shutil.rmtree(folder, ignore_errors=True)
        time.sleep(AGAIN_S)


def has_mount(folder: Path) -> bool:
    """Tell whether anything is mounted at or below the folder."""
    lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    points = [line.split()[4] for line in lines]
    inside = str(folder).encode()
    return any(point == inside or point.startswith(inside + b"/") for point in points)


if __name__ == "__main__":
    main()
