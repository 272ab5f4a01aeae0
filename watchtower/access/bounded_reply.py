"""A reply with a limit of time and size. Both limits are for the whole reply, not for each read.

http.client starts a new timeout for every piece: a server that sends one byte a second could block
the reading thread for hours. It also reads headers of megabytes, and any number of "100 Continue".
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_HEAD_BYTES = 32 * 1024
"""Bytes of status line and headers. A tower sends 200 bytes, and proxies add a few hundred. The
limit is less than the longest line that http.client reads, so that the error is always the same."""

FRAMES = 8
"""A chunked body may need this many times its own size on the connection."""


class ReplyTooLongError(http.client.HTTPException):
    """A reply is longer than the client accepts."""


def bounded_reply(deadline_s: float, max_bytes: int) -> type[http.client.HTTPResponse]:
    """Return a `response_class` for connections, whose replies have limits.

    Raises TimeoutError if status, headers and body need more than `deadline_s` seconds together,
    and ReplyTooLongError if the headers or the chunk framing are far longer than necessary. The
    caller reads at most `max_bytes` + 1 bytes of the body.
    """

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
            self._reader = _BoundedReader(sock, time.monotonic() + deadline_s, MAX_HEAD_BYTES)
            self.fp = io.BufferedReader(self._reader)

        def begin(self) -> None:
            super().begin()
            self._reader.allow(max_bytes * FRAMES)

    return BoundedReply


def read_body(response: http.client.HTTPResponse, max_bytes: int) -> bytes:
    """Return the whole body. Raises ReplyTooLongError, and IncompleteRead if the end is missing.

    http.client itself does not raise IncompleteRead if a number of bytes is requested.
    """
    body = response.read(max_bytes + 1)
    if len(body) > max_bytes:
        raise ReplyTooLongError(f"the reply is longer than {max_bytes} bytes")
    if response.length:
        raise http.client.IncompleteRead(body, response.length)
    return body


class _BoundedReader(io.RawIOBase):
    """Reads a socket up to a time on the monotonic clock and up to a number of bytes."""

    def __init__(self, sock: socket.socket, until: float, most: int) -> None:
        self._sock, self._until, self._left = sock, until, most
        # makefile() keeps the socket open for this reader when the connection closes it.
        self._raw = sock.makefile("rb", buffering=0)

    def allow(self, count: int) -> None:
        """Allow `count` more bytes."""
        self._left += count

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the reply took too long")
        if self._left <= 0:
            raise ReplyTooLongError("the headers or the chunk framing of the reply are too long")
        before = self._sock.gettimeout()
        self._sock.settimeout(left_s if before is None else min(left_s, before))
        try:
            count = self._raw.readinto(buffer)
        finally:
            self._sock.settimeout(before)
        self._left -= count or 0
        return count

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()
