"""Answers requests for pages: renders them, and answers 304 while what they show is unchanged.

An open page asks for its own address every two seconds. The values of a page are collected at most
once a second, for all requests together. Their digest is the ETag, and a page is rendered only if
the digest changes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from watchtower import __version__
from watchtower.tower.incident_ids import AmbiguousIdError
from watchtower.tower.store_writer import StoreFailedError
from watchtower.ui.environment import make_environment
from watchtower.ui.static_files import StaticFiles

FRESH_S = 1.0
"""Seconds for which the values of a page are used again."""

MAX_PAGES = 128
"""Pages that are kept, the least recently used is dropped first. With 100 kB each that is 13 MB."""

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; object-src 'none'",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
}
"""Of every page. Scripts and styles are files of the tower: text of a job cannot become one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a page shows."""

    template: str
    values: Mapping[str, Any]
    """Dataclasses, lists, texts and numbers. No value changes with time alone: ages are written as
    the time at which they began."""
    fresh_s: float = FRESH_S
    """Seconds for which it is used again."""
    is_fresh: Callable[[], bool] = lambda: True
    """Returns whether it may still be used again before that."""


@dataclass(slots=True)
class _Kept:
    """A page that was shown."""

    shown: Shown
    etag: str
    collected_at: float
    body: bytes | None = None

    def is_fresh(self, now: float) -> bool:
        """Return whether it may be used again."""
        return now - self.collected_at < self.shown.fresh_s and self.shown.is_fresh()


Collect = Callable[[], Awaitable[Shown]]


class Pages:
    """Answers requests for pages, and keeps the pages that were shown last."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.static = StaticFiles()
        self._now = now
        self._kept: OrderedDict[tuple[str, ...], _Kept] = OrderedDict()
        self._environment = make_environment()
        self._environment.globals["static"] = self.static.address
        self._environment.globals["version"] = __version__

    async def answer(self, request: Request, name: str, collect: Collect) -> Response:
        """Answer a request for a page. `name` and the path of the request identify it."""
        root = find_root(request)
        try:
            page = await self._find((name, request.url.path, root), collect)
        except (HTTPException, AmbiguousIdError, StoreFailedError) as error:
            return self._answer_error(error, root)
        headers = {**HEADERS, "ETag": page.etag}
        if page.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if page.body is None:
            page.body = self._render(page.shown, root, page.etag)
        return HTMLResponse(page.body, headers=headers)

    async def _find(self, key: tuple[str, ...], collect: Collect) -> _Kept:
        kept, now = self._kept.get(key), self._now()
        if kept is not None and kept.is_fresh(now):
            self._kept.move_to_end(key)
            return kept
        shown = await collect()
        etag = self._digest(shown)
        if kept is None or kept.etag != etag:
            kept = _Kept(shown, etag, now)
        kept.shown, kept.collected_at = shown, now
        self._kept[key] = kept
        self._kept.move_to_end(key)
        if len(self._kept) > MAX_PAGES:
            self._kept.popitem(last=False)
        return kept

    def _digest(self, shown: Shown) -> str:
        content = msgspec.json.encode(
            (__version__, self.static.version, shown.template, shown.values)
        )
        return f'"{blake2b(content, digest_size=12).hexdigest()}"'

    def _render(self, shown: Shown, root: str, etag: str = "") -> bytes:
        template = self._environment.get_template(shown.template)
        here = shown.template.removesuffix(".html")
        return template.render(root=root, here=here, etag=etag, **shown.values).encode()

    def _answer_error(self, error: Exception, root: str) -> Response:
        status, detail = _describe_error(error)
        shown = Shown(template="error.html", values={"status": status, "detail": detail})
        return HTMLResponse(self._render(shown, root), status, HEADERS)


def _describe_error(error: Exception) -> tuple[int, str]:
    if isinstance(error, HTTPException):
        return error.status_code, error.detail
    return (409 if isinstance(error, AmbiguousIdError) else 503), str(error)


def find_root(request: Request) -> str:
    """Return the way from a page to the root of the tower: "./", "../", "../../".

    Links that begin with it also work behind a proxy that adds a prefix to the path.
    """
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    depth = raw.count(b"/") - 1
    return "../" * depth if depth > 0 else "./"
