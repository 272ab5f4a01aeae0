"""What happens to bodies of the API on their way: a limit, compression, and 304 for unchanged ones.

Bodies of agents have their own limits (`ingest.py`), and so have those of forms (`ui/actions.py`).
Only the answers about every rank of a job are compressed: the grid of a page of 16,384 ranks has
150 kB, which repeat themselves. An entity tag is a digest of the body. An answer that contains an
age, such as that of a live job, changes with every report.
"""

from __future__ import annotations

import gzip
from hashlib import blake2b

from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from watchtower.api.problems import problem

MAX_BODY_BYTES = 64 * 1024
"""Bytes of a body. The largest has two texts, 1280 characters together, and each character may be
written as 12 bytes."""

_DETAIL = f"the body is larger than {MAX_BODY_BYTES} bytes, the limit of this address"


class BodyLimit:
    """ASGI middleware that refuses larger bodies, also those that do not declare their length."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or refuse its body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "0")
        if length.isascii() and length.isdigit() and int(length[:18]) > MAX_BODY_BYTES:
            await problem(413, _DETAIL)(scope, receive, send)
            return
        received = 0

        async def count() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > MAX_BODY_BYTES:
                raise HTTPException(413, _DETAIL)
            return message

        await self._app(scope, count, send)


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


TAGGED = "/api/v1/"
UNTAGGED = "/export"
"""An export is read once and may have 100 MB. Its digest would only delay it."""

MAX_COMPARED = 4096
"""Characters of If-None-Match that are compared: about a hundred tags."""


class EntityTags:
    """ASGI middleware that tags complete answers to GET requests of the API."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http" or scope["method"] != "GET" or not _has_tag(scope["path"]):
            await self._app(scope, receive, send)
            return
        known = Headers(scope=scope).get("if-none-match", "")[:MAX_COMPARED]
        start: Message | None = None

        async def tag(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and message["status"] == 200:
                start = message
                return
            if start is None:
                await send(message)
                return
            begun, start = start, None
            if message.get("more_body"):
                await send(begun)  # a stream: its end is not known yet
                await send(message)
                return
            headers = MutableHeaders(raw=begun["headers"])
            headers["ETag"] = entity_tag = _digest(message.get("body", b""))
            headers["Cache-Control"] = "private, no-cache"
            if _matches(known, entity_tag):
                kept = {name: headers[name] for name in ("ETag", "Cache-Control")}
                await Response(status_code=304, headers=kept)(scope, receive, send)
                return
            await send({**begun, "headers": headers.raw})
            await send(message)

        await self._app(scope, receive, tag)


def _has_tag(path: str) -> bool:
    return path.startswith(TAGGED) and not path.endswith(UNTAGGED)


def _digest(body: bytes) -> str:
    return f'"{blake2b(body, digest_size=12).hexdigest()}"'


def _matches(known: str, entity_tag: str) -> bool:
    """Return whether If-None-Match names the tag. Proxies may have made it a weak one."""
    tags = (each.strip().removeprefix("W/") for each in known.split(","))
    return any(each in (entity_tag, "*") for each in tags)
