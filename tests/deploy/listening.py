"""The other end of sd_notify: a real datagram socket, as systemd has one."""

from __future__ import annotations

import os
import select
import socket
import time
import uuid
from pathlib import Path
from types import TracebackType


class ServiceManager:
    """Collects what daemons tell it; `environment` is what they need to be told."""

    def __init__(self, path: Path | None = None, watchdog_s: float = 0.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        name = str(path) if path else f"@watchtower-test-{uuid.uuid4().hex}"
        self._socket.bind(name.replace("@", "\0", 1) if path is None else name)
        self.environment = {"NOTIFY_SOCKET": name}
        if watchdog_s:
            self.environment["WATCHDOG_USEC"] = str(int(watchdog_s * 1e6))
        self.lines: list[str] = []

    def hear(self, wait_s: float = 0.0) -> list[str]:
        """Return the lines that came since the last call, waiting this long for the first."""
        heard: list[str] = []
        while select.select([self._socket], [], [], 0 if heard else wait_s)[0]:
            heard += self._socket.recv(65536).decode().split("\n")
        self.lines += heard
        return heard

    def hear_until(self, line: str, deadline_s: float = 90.0) -> list[str]:
        """Listen until this very line comes; return what came up to then."""
        until, heard = time.monotonic() + deadline_s, []
        while line not in heard:
            assert time.monotonic() < until, f"no {line} within {deadline_s} s: {self.lines}"
            heard += self.hear(0.1)
        return heard

    def __enter__(self) -> ServiceManager:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        name = self._socket.getsockname()
        self._socket.close()
        if isinstance(name, str):
            os.unlink(name)
