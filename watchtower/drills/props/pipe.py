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
    print("ready", json.dumps({"path": path}), flush=True)
    signal.sigwait({signal.SIGTERM})
    with contextlib.suppress(OSError):  # nobody waits, or the folder is gone
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))


if __name__ == "__main__":
    main()
