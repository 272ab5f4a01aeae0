"""A reply that ends in time and within a size: both bounds are for all of it, not for each read.

http.client waits anew for every piece, so that a server that drips one byte a second would hold
the thread that reads for hours. It also reads heads of megabytes, and as many "100 Continue" as
come.
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
"""Status line and headers. A tower sends 200 bytes, proxies add a few hundred. It is less than the
longest line that http.client reads, so that the error is always the same."""

FRAMES = 8
"""A body may take this many times its own size on the wire, in frames of chunks."""


class ReplyTooLongError(http.client.HTTPException):
    """A reply has more bytes than are read of it."""


def bounded_reply(deadline_s: float, max_bytes: int) -> type[http.client.HTTPResponse]:
    """Make a `response_class` for connections: status, headers and body come within `deadline_s`
    together, else TimeoutError.

    Of the body at most one byte more than `max_bytes` is to be read. A head, or frames around the
    body, that are far longer than needed raise ReplyTooLongError.
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
    """Return the whole body. Raises ReplyTooLongError, and IncompleteRead when its end is missing,
    which http.client does not when it is asked for so many bytes."""
    body = response.read(max_bytes + 1)
    if len(body) > max_bytes:
        raise ReplyTooLongError(f"the reply is longer than {max_bytes} bytes")
    if response.length:
        raise http.client.IncompleteRead(body, response.length)
    return body


class _BoundedReader(io.RawIOBase):
    """Reads a socket until a moment on the monotonic clock, and so many bytes."""

    def __init__(self, sock: socket.socket, until: float, most: int) -> None:
        self._sock, self._until, self._left = sock, until, most
        # Of the socket's own kind, so that it stays open for us when the connection closes it.
        self._raw = sock.makefile("rb", buffering=0)

    def allow(self, count: int) -> None:
        """Allow so many bytes more than so far."""
        self._left += count

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the reply takes too long")
        if self._left <= 0:
            raise ReplyTooLongError("the reply has a head, or frames around its body, without end")
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
