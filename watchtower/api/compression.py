"""Compresses the answers about every rank of a job: the grid of a page of 16,384 ranks has 150 kB,
which repeat themselves.

Other answers are small, or read by programs on the same network.
"""

from __future__ import annotations

import gzip

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

ENDINGS = ("/ranks", "/ranks.bin")

LEAST_BYTES = 1024
"""A smaller body fits into one packet anyway."""

LEVEL = 5
"""Of zlib: 16,384 ranks take about 2 ms."""


class Compression:
    """ASGI middleware that compresses these answers with gzip for clients that accept it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        is_wanted = scope["type"] == "http" and scope["path"].endswith(ENDINGS)
        if not is_wanted or "gzip" not in Headers(scope=scope).get("accept-encoding", ""):
            await self._app(scope, receive, send)
            return
        start: Message | None = None

        async def compress(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            begun, start = start, None
            body = message.get("body", b"")
            if begun is not None and not message.get("more_body") and len(body) >= LEAST_BYTES:
                body = gzip.compress(body, LEVEL, mtime=0)  # equal answers have equal entity tags
                headers = MutableHeaders(raw=begun["headers"])
                headers["Content-Encoding"] = "gzip"
                headers["Content-Length"] = str(len(body))
                headers.add_vary_header("Accept-Encoding")
                message = {**message, "body": body}
                begun = {**begun, "headers": headers.raw}
            if begun is not None:
                await send(begun)
            await send(message)

        await self._app(scope, receive, compress)
