"""The name of a job in the path of a request: any name works, a slash in it too.

Servers decode a path before it is routed. A job `x/verdict`, requested as `x%2Fverdict`, would then
be the verdict of job `x`. So the path of a job is routed as it was sent, and the name is decoded
afterwards. A slash that is not encoded works too, unless the name ends in a word as `/verdict`.
"""

from __future__ import annotations

from urllib.parse import unquote

from starlette.convertors import Convertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send

JOBS = "/api/v1/jobs"


class _JobName(Convertor[str]):
    regex = ".+"

    def convert(self, value: str) -> str:
        return unquote(value)

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("job", _JobName())


class RawJobPaths:
    """ASGI middleware that undoes the decoding of paths that name a job."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, with the path as it was sent where that names a job."""
        raw: bytes = scope.get("raw_path") or b""
        if scope["type"] == "http" and raw.startswith(f"{JOBS}/".encode()):
            scope = {**scope, "path": raw.decode("ascii", "replace")}
        await self._app(scope, receive, send)
