"""Tells systemd how a daemon is doing: ready, alive, stopping, and one line for people.

The protocol is sd_notify(3): datagrams of VARIABLE=value lines to the socket named by
NOTIFY_SOCKET. Shared by tower and agent, hence the standard library only. Without systemd, and
whatever goes wrong, nothing happens: a watch must not end because nobody listens to it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from watchtower.printable import printable

MAX_STATUS = 240
"""Characters of the line in `systemctl status`: more is cut off by a terminal anyway."""

RETRY_S = 1.0
"""systemd reads its socket within milliseconds; one that is full now is tried again after this."""


class Notifier:
    """One daemon's line to systemd; use it from one thread."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self._gap_s = _watchdog_s(environment) / 2
        self._feed_at = float("inf") if self._gap_s == float("inf") else float("-inf")
        self._is_ready = False
        self._status = ""

    def alive(self, now: float, status: str) -> float:
        """Report that a check has worked at `now` (seconds, any monotonic clock).

        The first time this says that the daemon is ready. Call it after every check: it sends only
        what is due, the watchdog's food twice per WatchdogSec, `status` when it has changed.
        Returns when to call again at the latest.
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
        """Say that the daemon is about to end."""
        self._send(["STOPPING=1", "STATUS=stopping"])

    def _send(self, lines: list[str]) -> bool:
        """Send without waiting; True when there is nothing to try again."""
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
    """Return what the kernel calls this socket; "" for none, and for kinds we do not speak."""
    if name.startswith("@"):
        return "\0" + name[1:]
    return name if name.startswith("/") else ""


def _watchdog_s(environment: Mapping[str, str]) -> float:
    """Return how long systemd waits for a sign of life, infinity when it does not."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return float("inf")
    text = environment.get("WATCHDOG_USEC", "")
    usable = text.isascii() and text.isdigit() and int(text) > 0
    return int(text) / 1e6 if usable else float("inf")
