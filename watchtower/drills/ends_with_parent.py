"""Runs a command that the kernel ends when the drill dies, however it dies.

Run by path: python -I ends_with_parent.py SIGNAL PARENT COMMAND... It becomes the command, under
the same pid.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for the signal, check that the parent is still there, become the command."""
    signal_number, parent, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal_number), 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit("the drill is gone")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
