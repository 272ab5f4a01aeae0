"""Ends every process of a job, orphans too: those with a given word in their environment.

Run by path: python -I sweeper.py NAME=VALUE. It does so when it is ended, or when the drill dies.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

DEADLINE_S = 2.0
"""Processes that are still there then cannot be ended, such as those in uninterruptible sleep."""


def main() -> None:
    """Wait to be ended, then kill until nobody is left."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    word = sys.argv[1].encode()
    print("ready", json.dumps({}), flush=True)
    signal.sigwait({signal.SIGTERM})
    until = time.monotonic() + DEADLINE_S
    # Again until none is found: one may have forked while the others were being killed.
    while kill_all(word) and time.monotonic() < until:
        time.sleep(0.01)


def kill_all(word: bytes) -> int:
    """Kill them; return how many there were."""
    count = 0
    for pid in find(word):
        count += 1
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return count


def find(word: bytes) -> Iterator[int]:
    """Processes with this word in their environment; zombies have none any more."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if word in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)


if __name__ == "__main__":
    main()
