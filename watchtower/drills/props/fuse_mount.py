"""A FUSE file system that never answers, as one whose daemon hangs: who touches it sleeps in D.

Run by path: python -I fuse_mount.py FOLDER, as root. The kernel's first request (INIT) stays
unanswered, so later ones wait in fuse_get_req; closing /dev/fuse fails them all at once.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

SOURCE = "watchtower-drill-"
"""Then the pid: a mount whose process is gone is taken away by the next drill."""
MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Mount, wait to be ended, close and unmount."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if os.geteuid() != 0:
        sys.exit("mounting a file system needs root")
    remove_left_overs()
    path = os.path.join(sys.argv[1], "shared-storage")
    os.mkdir(path)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        sys.exit(f"cannot open /dev/fuse: {error.strerror}")
    mount(f"{SOURCE}{os.getpid()}", path, device)
    print("ready", json.dumps({"path": path}), flush=True)
    signal.sigwait({signal.SIGTERM})
    os.close(device)
    unmount(path)


def mount(source: str, path: str, device: int) -> None:
    """Mount the device at the path; exits with the reason where that is not allowed."""
    options = f"fd={device},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()}"
    words = (source.encode(), path.encode(), b"fuse", 0, options.encode())
    if _libc.mount(*words) == -1:
        sys.exit(f"cannot mount at {path}: {os.strerror(ctypes.get_errno())}")


def unmount(path: str) -> None:
    """Take it out of the tree; whoever still has it open sees errors."""
    _libc.umount2(path.encode(), MNT_DETACH)


def remove_left_overs() -> None:
    """Unmount what a prop that was killed could not."""
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        for line in mounts:
            fields = line.split()
            source = fields[fields.index("-") + 2]
            pid = source.removeprefix(SOURCE)
            if source != pid and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
                unmount(fields[4])


if __name__ == "__main__":
    main()
