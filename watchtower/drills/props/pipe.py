"""A named pipe that nobody writes to: whoever opens it for reading waits until this prop is ended.

Run by path: python -I pipe.py FOLDER. Letting go is to open it for writing once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys


def main() -> None:
    """Make the pipe, wait to be ended, release whoever waits for a writer."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    path = os.path.join(sys.argv[1], "upload.pipe")
    os.mkfifo(path)
    handle = os.open(path, os.O_PATH)
    print("ready", json.dumps({"path": path}), flush=True)
    signal.sigwait({signal.SIGTERM})
    os.unlink(path)  # first, so that nobody comes to wait after the others were released
    with contextlib.suppress(OSError):  # nobody waits
        os.close(os.open(f"/proc/self/fd/{handle}", os.O_WRONLY | os.O_NONBLOCK))


if __name__ == "__main__":
    main()
