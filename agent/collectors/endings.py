"""Collector: detects at once that a process ended, and how, as far as the kernel reports it.

The agent cannot wait for a process that it did not start. A pidfd shows when the process ended.
With new kernels it also shows how, even after the parent has waited for it. With others the stat
file of a zombie shows it. An unknown status stays unknown: it is not exit code 0.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
from dataclasses import dataclass

from agent.collectors.process import OpenFiles
from watchtower.wire.report import EndingKind

_INFO = struct.Struct("=QQ11Ii")
"""struct pidfd_info of linux/pidfd.h: mask, cgroup id, eleven ids, exit status."""
_INFO_EXIT = 1 << 3
"""PIDFD_INFO_EXIT: set in the request; set in the answer if it contains the status (Linux 6.15)."""
_GET_INFO = 0xC0000000 | _INFO.size << 16 | 0xFF << 8 | 11
"""PIDFD_GET_INFO, _IOWR(0xFF, 11, struct pidfd_info)."""

_ZOMBIE = ("Z", "X", "x")
_NOT_PERMITTED = 1
"""start_code of a living process that the reader may not trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitStatus:
    """How a process ended, according to the kernel."""

    kind: EndingKind
    code: int | None = None


UNKNOWN_STATUS = ExitStatus(kind=EndingKind.UNKNOWN)


def decode_wait_status(status: int) -> ExitStatus:
    """Return the exit code or signal number of a wait status (wait(2))."""
    signal = status & 0x7F
    if signal:
        return ExitStatus(kind=EndingKind.SIGNAL, code=signal)
    return ExitStatus(kind=EndingKind.EXIT, code=status >> 8 & 0xFF)


class EndWatch:
    """Watches one process from its discovery until its exit status is known."""

    def __init__(self, pid: int, start_time: int, files: OpenFiles) -> None:
        self._files = files
        self.pidfd = _open_pidfd(pid)
        stat = files.stat()
        self._may_trace = stat is not None and stat.start_code > _NOT_PERMITTED
        # Another process got this pid before the pidfd was open.
        self._is_another = stat is not None and stat.start_time != start_time

    def __del__(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)

    def has_ended(self) -> bool:
        """Return whether the whole process has ended. Its threads may outlive the main thread."""
        if self._is_another:
            return True
        if self.pidfd >= 0:
            return _is_readable(self.pidfd)
        stat = self._files.stat()
        return stat is None or stat.state in _ZOMBIE

    def status(self) -> ExitStatus:
        """Return how it ended. UNKNOWN may become known later, when the parent has waited for
        it.
        """
        if self._is_another:
            return UNKNOWN_STATUS
        status = _status_by_pidfd(self.pidfd) if self.pidfd >= 0 else None
        if status is None:
            status = self._status_of_zombie()
        return UNKNOWN_STATUS if status is None else decode_wait_status(status)

    def is_zombie(self) -> bool:
        """Return whether its parent has not waited for it yet."""
        stat = None if self._is_another else self._files.stat()
        return stat is not None and stat.state in _ZOMBIE

    def _status_of_zombie(self) -> int | None:
        stat = self._files.stat()
        if stat is None or stat.state not in _ZOMBIE:
            return None
        # Without the right to trace, the field is 0. Other values are always true.
        return stat.exit_code if stat.exit_code or self._may_trace else None


def _open_pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return -1


def _is_readable(pidfd: int) -> bool:
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def _status_by_pidfd(pidfd: int) -> int | None:
    request = bytearray(_INFO.pack(_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, request)
    except OSError:
        return None
    answer = _INFO.unpack(request)
    return int(answer[-1]) if answer[0] & _INFO_EXIT else None
