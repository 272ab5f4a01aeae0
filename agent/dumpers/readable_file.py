"""Checks that an open file may be read for a process: regular, of storage, and readable for it.

Standard library only.
"""

from __future__ import annotations

import os
import stat

from agent.dumpers.file_rights import READ, FileRights
from agent.mounts import PSEUDO_FILE_SYSTEMS, mount_of, type_of

MAX_TABLE_BYTES = 1 << 20
"""Bytes read of a file in /proc. A node with thousands of mounts has less."""


class NotReadable(Exception):
    """This file is not read."""


def check_readable(found: int, process: str, rights: FileRights) -> os.stat_result:
    """Return the status of a file. `found` is an O_PATH descriptor, `process` is "/proc/PID".

    Raises NotReadable if it is not regular, on a pseudo file system, or not readable for the
    process. Raises OSError.
    """
    status = os.fstat(found)
    if not stat.S_ISREG(status.st_mode) or not rights.has(status, READ):
        raise NotReadable
    # After a chroot the process does not see the mount of its root. The numbers are the kernel's.
    mounts = read_table(f"{process}/mountinfo") + read_table("/proc/self/mountinfo")
    kind = type_of(mounts, mount_of(read_table(f"/proc/self/fdinfo/{found}")))
    if not kind or kind in PSEUDO_FILE_SYSTEMS:
        raise NotReadable
    return status


def reopen(found: int) -> int:
    """Return a descriptor to read the file of an O_PATH descriptor. Raises OSError."""
    return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def read_table(path: str) -> bytes:
    """Return the beginning of a file in /proc. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(MAX_TABLE_BYTES)
