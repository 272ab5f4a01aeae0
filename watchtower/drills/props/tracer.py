"""Traces a process and holds it, as a debugger does at its prompt.

Run by path: python -I tracer.py PID. Prints the moment it took hold, runs until ended; the kernel
lets the process go then.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time

PTRACE_SEIZE = 0x4206
PTRACE_INTERRUPT = 0x4207

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def _ptrace(request: int, pid: int) -> None:
    if _libc.ptrace(request, pid, None, None) == -1:
        error = ctypes.get_errno()
        sys.exit(f"cannot trace process {pid}: {os.strerror(error)}")


def main() -> None:
    """Seize the process, stop it, wait to be ended."""
    pid = int(sys.argv[1])
    _ptrace(PTRACE_SEIZE, pid)
    moment_s = time.monotonic()
    _ptrace(PTRACE_INTERRUPT, pid)
    os.waitpid(pid, 0)
    print("fault", json.dumps({"monotonic_s": moment_s}), flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
