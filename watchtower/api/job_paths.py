"""The name of a job in the path of a request. Any name works, also one with a slash.

Servers decode a path before they route it. A request of job `x/verdict` as `x%2Fverdict` would then
return the verdict of job `x`. So the path of a job is routed without decoding, and the name is
decoded afterwards. A slash without encoding works, unless the name ends with a route such as
`/verdict`. The page of a job is at `/jobs/NAME`.
"""

from __future__ import annotations

from urllib.parse import unquote

from starlette.convertors import Convertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send

JOBS = "/api/v1/jobs"
PAGES = "/jobs"

_STARTS = tuple(f"{each}/".encode() for each in (JOBS, PAGES))


class _JobName(Convertor[str]):
    regex = ".+"

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("job", _JobName())


class RawJobPaths:
    """ASGI middleware that restores the encoded path of requests about a job."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request. The path of a job is the encoded path that the client sent."""
        raw: bytes = scope.get("raw_path") or b""
        if scope["type"] == "http" and raw.startswith(_STARTS):
            scope = {**scope, "path": raw.decode("ascii", "replace")}
        await self._app(scope, receive, send)
