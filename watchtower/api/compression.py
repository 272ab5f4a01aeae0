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

MAX_ACCEPTED = 1024
"""Characters of Accept-Encoding that are read: far more than a browser sends."""


class Compression:
    """ASGI middleware that compresses these answers with gzip for clients that accept it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http" or not scope["path"].endswith(ENDINGS):
            await self._app(scope, receive, send)
            return
        is_accepted = _accepts_gzip(Headers(scope=scope).get("accept-encoding", ""))
        start: Message | None = None

        async def compress(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                headers.add_vary_header("Accept-Encoding")
                start = {**message, "headers": headers.raw}
                return
            begun, start = start, None
            body = message.get("body", b"")
            is_whole = not message.get("more_body")
            if begun is not None and is_whole and is_accepted and len(body) >= LEAST_BYTES:
                body = gzip.compress(body, LEVEL)
                headers = MutableHeaders(raw=begun["headers"])
                headers["Content-Encoding"] = "gzip"
                headers["Content-Length"] = str(len(body))
                if "ETag" in headers:
                    # The tag is of the plain body: the same content, but not the same bytes.
                    headers["ETag"] = f"W/{headers['ETag'].removeprefix('W/')}"
                message = {**message, "body": body}
                begun = {**begun, "headers": headers.raw}
            if begun is not None:
                await send(begun)
            await send(message)

        await self._app(scope, receive, compress)


def _accepts_gzip(accepted: str) -> bool:
    """Return whether Accept-Encoding names gzip, and not with a quality of zero."""
    for each in accepted[:MAX_ACCEPTED].lower().split(","):
        name, _, quality = each.replace(" ", "").partition(";q=")
        if name == "gzip":
            return bool(quality.strip("0.")) or not quality
    return False
