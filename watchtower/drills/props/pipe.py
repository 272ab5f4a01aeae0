"""A named pipe that nobody writes to: whoever opens it for reading waits until this prop is ended.

Run by path: python -I pipe.py FOLDER. Letting go is to open it for writing once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

RELEASE_S = 0.2
"""How long the other end stays open, for whoever was on the way in when the name was taken away."""


def main() -> None:
    """Make the pipe, wait to be ended, release whoever waits for a writer."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    path = os.path.join(sys.argv[1], "upload.pipe")
    os.mkfifo(path)
    handle = os.open(path, os.O_PATH)
    print("ready", json.dumps({"path": path}), flush=True)
    signal.sigwait({signal.SIGTERM})
    os.unlink(path)  # first, so that nobody comes to wait after the others were released
    os.open(f"/proc/self/fd/{handle}", os.O_RDWR)
    time.sleep(RELEASE_S)


if __name__ == "__main__":
    main()
