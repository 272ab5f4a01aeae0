"""Entity tags of the API's answers: 304 without a body while an answer is unchanged.

The tag is a digest of the body. An answer that contains an age, such as that of a live job, changes
with every report.
"""

from __future__ import annotations

from hashlib import blake2b

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
