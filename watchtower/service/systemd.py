"""Notifies systemd of the state of a daemon: ready, alive, stopping, and a status line.

The protocol is sd_notify(3): datagrams of VARIABLE=value lines to the socket in NOTIFY_SOCKET.
Tower and agent share this module, so that it imports the standard library only. Errors, and a
missing systemd, are ignored: monitoring must not depend on it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from watchtower.writing.printable import printable

MAX_STATUS = 240
"""Characters of the status line in `systemctl status`. A terminal would cut off a longer line."""

RETRY_S = 1.0
"""Seconds until a retry if the socket is full. systemd reads its socket within milliseconds."""


class Notifier:
    """Sends the state of one daemon to systemd. Not thread-safe."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self._gap_s = _watchdog_s(environment) / 2
        self._feed_at = float("inf") if self._gap_s == float("inf") else float("-inf")
        self._is_ready = False
        self._status = ""

    def alive(self, now: float, status: str) -> float:
        """Report a successful check at `now` (seconds of any monotonic clock).

        Call it after every check. It sends only what is due: READY=1 the first time, WATCHDOG=1
        twice per WatchdogSec, and `status` if it has changed. Return the time of the next call at
        the latest.
        """
        is_due = now >= self._feed_at
        lines = [] if self._is_ready else ["READY=1"]
        if is_due:
            lines.append("WATCHDOG=1")
        if status != self._status:
            lines.append(f"STATUS={printable(status, MAX_STATUS)}")
        if lines and not self._send(lines):
            return now + min(RETRY_S, self._gap_s)
        self._is_ready, self._status = True, status
        if is_due:
            self._feed_at = now + self._gap_s
        return self._feed_at

    def stopping(self) -> None:
        """Report that the daemon is about to end."""
        self._send(["STOPPING=1", "STATUS=stopping"])

    def _send(self, lines: list[str]) -> bool:
        """Send without waiting. Return False if the lines must be sent again."""
        if not self._address:
            return True
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        try:
            with socket.socket(socket.AF_UNIX, kind) as sender:
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return False
        return True


def _address(name: str) -> str:
    """Return the kernel's address of the socket `name`; "" for none and for unsupported kinds."""
    if name.startswith("@"):
        return "\0" + name[1:]
    return name if name.startswith("/") else ""


def _watchdog_s(environment: Mapping[str, str]) -> float:
    """Return the watchdog's timeout in seconds; infinity without a watchdog."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return float("inf")
    text = environment.get("WATCHDOG_USEC", "")
    usable = text.isascii() and text.isdigit() and int(text) > 0
    return int(text) / 1e6 if usable else float("inf")
