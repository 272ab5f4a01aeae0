"""Runs a command that the kernel ends when its parent dies for any reason.

Usage: python -I ends_with_parent.py SIGNAL PARENT COMMAND... The script becomes the command, with
the same pid.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Request the signal from the kernel, check that the parent still runs, and exec the
    command.
    """
    signal_number, parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit("the parent has ended")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
