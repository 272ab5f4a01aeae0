"""Answers requests for pages: renders them, and answers 304 while what they show is unchanged.

An open page asks for its own address every two seconds. The values of a page are collected at most
once a second, for all requests together. After a person has changed something, by a form, the API
or a chat, they are collected at once. Their digest is the ETag, and a page is rendered only if the
digest changes.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec
from markupsafe import escape
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import Scope

from watchtower import __version__
from watchtower.api.browsers import address_of, find_root
from watchtower.api.visitors import Visitor, Way, visitor_of
from watchtower.tower.acts import RequestRefusedError
from watchtower.tower.store_writer import StoreFailedError
from watchtower.tower.stored_incidents import AmbiguousIdError
from watchtower.ui.templates import StaticFiles, make_environment

FRESH_S = 1.0
"""Seconds for which the values of a page are used again."""

MAX_PAGES = 128
"""Pages that are kept, the least recently used is dropped first. With 100 kB each that is 13 MB."""

MARKED = ("form_token", "person", "etag")
"""Values that differ between persons who share a page that is kept."""

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
    """The content of a page."""

    template: str
    values: Mapping[str, Any]
    """Dataclasses, lists, texts and numbers. No value changes with time alone: ages are written as
    the time at which they began."""
    fresh_s: float = FRESH_S
    """Seconds for which it is used again."""
    is_fresh: Callable[[], bool] = lambda: True
    """Returns whether it may still be used again before that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """The person who opened a page, as it shows them. Equal for many persons, who share a page."""

    way: Way
    may_read: bool
    may_change: bool

    @property
    def can_log_out(self) -> bool:
        """Whether the person has a session of the tower."""
        return self.way is Way.SESSION

    @property
    def has_name(self) -> bool:
        """Whether a proxy names the person."""
        return self.way is Way.PROXY


@dataclass(slots=True)
class _Kept:
    """A page that was shown."""

    shown: Shown
    etag: str
    collected_at: float
    changes: int
    """Number of changes that it shows."""
    body: bytes | None = None

    def is_fresh(self, now: float, changes: int) -> bool:
        """Return whether it may be used again."""
        is_new = now - self.collected_at < self.shown.fresh_s and changes == self.changes
        return is_new and self.shown.is_fresh()


Collect = Callable[[], Awaitable[Shown]]

_Address = tuple[str, Reader]
"""Path and query, and what the page shows of its reader."""


class Pages:
    """Answers requests for pages, and keeps the pages that were shown last."""

    def __init__(self, now: Callable[[], float], changes: Callable[[], int]) -> None:
        """`changes` returns how often people have changed something so far."""
        self.static = StaticFiles()
        self._now, self._changes = now, changes
        self._kept: OrderedDict[tuple[str, ...], _Kept] = OrderedDict()
        self._keys: OrderedDict[_Address, tuple[str, ...]] = OrderedDict()
        """Keys of `_kept` by what identifies a request without its route; at most `MAX_PAGES`, the
        least recently used is dropped first."""
        self._environment = make_environment()
        self._environment.globals["static"] = self.static.address
        self._environment.globals["version"] = __version__
        # Kept pages have marks in these places. A text of a job cannot contain an unknown mark.
        self._marks = {name: f"mark-{secrets.token_hex(16)}" for name in MARKED}
        self._environment.globals.update(self._marks)

    async def answer(self, request: Request, name: str, collect: Collect) -> Response:
        """Answer a request for a page. `name` and the path of the request identify it."""
        root, visitor = find_root(request.scope), visitor_of(request.scope)
        reader = _read_visitor(visitor)
        key = name, request.url.path, root, repr(reader)
        try:
            page = await self._find(key, collect)
        except (HTTPException, AmbiguousIdError, StoreFailedError) as error:
            return self.show_error(request.scope, *describe_error(error))
        address = _identify(request.scope)
        self._keys[address] = key
        self._keys.move_to_end(address)
        if len(self._keys) > MAX_PAGES:
            self._keys.popitem(last=False)
        etag = _tag_for(page, visitor)
        headers = {**HEADERS, "ETag": etag}
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if page.body is None:
            page.body = self._render(page.shown, root, reader)
        body = self._fill_in(page.body, visitor, etag.strip('"'))
        return HTMLResponse(body, headers=headers)

    def find_unchanged(self, scope: Scope) -> Response | None:
        """Return the answer 304 if the sender of a request has the present page; else None.

        Nothing is collected: the page must have been answered a moment before.
        """
        known = next((value for name, value in scope["headers"] if name == b"if-none-match"), b"")
        page = self._kept.get(self._keys.get(_identify(scope), ())) if known else None
        if page is None or not page.is_fresh(self._now(), self._changes()):
            return None
        etag = _tag_for(page, visitor_of(scope))
        if etag.encode() not in known:
            return None
        return Response(status_code=304, headers={**HEADERS, "ETag": etag})

    def show(
        self,
        scope: Scope,
        shown: Shown,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        """Return a page that is not kept."""
        visitor = visitor_of(scope)
        body = self._render(shown, find_root(scope), _read_visitor(visitor))
        filled = self._fill_in(body, visitor)
        return HTMLResponse(filled, status, {**HEADERS, **(headers or {})})

    def show_error(self, scope: Scope, status: int, detail: str) -> Response:
        """Return an error as a page."""
        values = {"status": status, "detail": detail}
        return self.show(scope, Shown(template="error.html", values=values), status)

    async def _find(self, key: tuple[str, ...], collect: Collect) -> _Kept:
        kept, now, changes = self._kept.get(key), self._now(), self._changes()
        if kept is not None and kept.is_fresh(now, changes):
            self._kept.move_to_end(key)
            return kept
        shown = await collect()
        etag = self._digest(shown)
        if kept is None or kept.etag != etag:
            kept = _Kept(shown, etag, now, changes)
        kept.shown, kept.collected_at, kept.changes = shown, now, changes
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

    def _render(self, shown: Shown, root: str, reader: Reader) -> bytes:
        template = self._environment.get_template(shown.template)
        here = shown.template.removesuffix(".html")
        return template.render(root=root, reader=reader, here=here, **shown.values).encode()

    def _fill_in(self, body: bytes, visitor: Visitor, etag: str = "") -> bytes:
        """Return a page for one person, with its values in the places of the marks."""
        values = (visitor.form_token, escape(visitor.name), etag)
        for name, value in zip(MARKED, values, strict=True):
            body = body.replace(self._marks[name].encode(), value.encode())
        return body


def _read_visitor(visitor: Visitor) -> Reader:
    return Reader(way=visitor.way, may_read=visitor.may_read, may_change=visitor.may_change)


def _identify(scope: Scope) -> _Address:
    return address_of(scope), _read_visitor(visitor_of(scope))


def _tag_for(page: _Kept, visitor: Visitor) -> str:
    """Return the ETag of a page for one person."""
    return f'{page.etag[:-1]}-{_digest_of(visitor)}"'


def _digest_of(visitor: Visitor) -> str:
    """Return a text that differs between persons whose pages differ."""
    content = f"{visitor.may_change} {visitor.form_token} {visitor.name}".encode()
    return blake2b(content, digest_size=6).hexdigest()


def describe_error(error: Exception) -> tuple[int, str]:
    """Return the HTTP status of an error that a person may cause, and its sentence."""
    if isinstance(error, HTTPException):
        return error.status_code, error.detail
    statuses = {AmbiguousIdError: 409, RequestRefusedError: 422}
    return statuses.get(type(error), 503), str(error)
