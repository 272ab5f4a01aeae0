"""Limits the bodies of the API's requests before they are parsed.

Bodies of agents have their own limits (`ingest.py`), and so have those of forms (`forms.py`).
"""

from __future__ import annotations

from fastapi import HTTPException
from starlette.datastructures import Headers
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
