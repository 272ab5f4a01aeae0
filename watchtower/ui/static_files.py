"""The style sheet and the script of the pages, from memory."""

from __future__ import annotations

from hashlib import blake2b
from importlib import resources

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

FOREVER = "public, max-age=31536000, immutable"
"""For addresses with the version of the content, which the templates write."""


class StaticFiles:
    """All files of the folder `static`, read once."""

    def __init__(self) -> None:
        folder = resources.files("watchtower.ui") / "static"
        self._files = {
            each.name: each.read_bytes()
            for each in folder.iterdir()
            if each.name.rpartition(".")[2] in MEDIA_TYPES
        }
        self.version = _digest(b"".join(self._files[name] for name in sorted(self._files)))
        """Changes with any of the files."""

    def address(self, name: str) -> str:
        """Return the address of a file, relative to the root of the tower."""
        return f"static/{name}?v={_digest(self._files[name])}"

    def route(self) -> Route:
        """Return the route of all files. They contain nothing of any job."""
        return Route("/static/{name}", self._get)

    async def _get(self, request: Request) -> Response:
        name = request.path_params["name"]
        content = self._files.get(name)
        if content is None:
            raise HTTPException(404, f"there is no file {name!r}")
        is_versioned = request.query_params.get("v") == _digest(content)
        return Response(
            content,
            media_type=MEDIA_TYPES[name.rpartition(".")[2]],
            headers={"Cache-Control": FOREVER if is_versioned else "no-cache"},
        )


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()
