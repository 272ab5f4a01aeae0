"""A reply that ends in time: its deadline is for all of it, not for each read.

http.client waits anew for every piece, so that a server that drips one byte a second would hold
the thread that reads for hours.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


def bounded_reply(deadline_s: float) -> type[http.client.HTTPResponse]:
    """Make a `response_class` for connections: status, headers and body come within `deadline_s`
    together; else TimeoutError."""

    class BoundedReply(http.client.HTTPResponse):
        def __init__(
            self,
            sock: socket.socket,
            debuglevel: int = 0,
            method: str | None = None,
            url: str | None = None,
        ) -> None:
            super().__init__(sock, debuglevel, method, url)
            self.fp.close()
            until = time.monotonic() + deadline_s
            self.fp = io.BufferedReader(_UntilDeadline(sock, until))

    return BoundedReply


class _UntilDeadline(io.RawIOBase):
    """Reads a socket until a moment on the monotonic clock."""

    def __init__(self, sock: socket.socket, until: float) -> None:
        self._sock, self._until = sock, until
        # Of the socket's own kind, so that it stays open for us when the connection lets go of it.
        self._raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the reply takes too long")
        before = self._sock.gettimeout()
        self._sock.settimeout(left if before is None else min(left, before))
        try:
            return self._raw.readinto(buffer)
        finally:
            self._sock.settimeout(before)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()
