"""Addresses within the tower: where a page is, and where a login leads back to.

All redirects are relative, so that they also work behind a proxy that adds a prefix to the path
(`public_url` with a path).
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from starlette.responses import RedirectResponse
from starlette.types import Scope

MAX_NEXT = 1024
"""Characters of the address to which a login leads back: a name of a job and a few filters."""

_LOCAL = re.compile(r"/[!-\[\]-~]*")
"""Printable ASCII without spaces and backslashes, which some browsers read as slashes."""

_NO_TARGETS = ("/login", "/logout", "/static/", "/api/", "/ingest/")
"""Beginnings of paths that are not pages to come back to."""


def find_root(scope: Scope) -> str:
    """Return the way from a request's path to the root of the tower: "./", "../", "../../"."""
    return "../" * (_raw_path(scope).count("/") - 1) or "./"


def address_of(scope: Scope) -> str:
    """Return path and query of a request, as the client sent them."""
    query = scope.get("query_string", b"").decode("ascii", "replace")
    return f"{_raw_path(scope)}?{query}" if query else _raw_path(scope)


def check_next(text: str) -> str:
    """Return an address that a login may lead to: `text` if it is a page of the tower, else "/"."""
    if len(text) > MAX_NEXT or not _LOCAL.fullmatch(text):
        return "/"
    path = unquote(text.partition("?")[0])
    if path.startswith(("//", *_NO_TARGETS)) or "\\" in path:
        return "/"
    return text


def redirect(scope: Scope, address: str) -> RedirectResponse:
    """Return a redirect (303) to a local address. The browser then sends a GET."""
    target = find_root(scope) + address.lstrip("/")
    return RedirectResponse(target, status_code=303)


def login_address(scope: Scope) -> str:
    """Return the address of the login that leads back to the page of a request."""
    back = check_next(address_of(scope))
    return "/login" if back == "/" else f"/login?next={quote(back, safe='/')}"


def _raw_path(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.partition(b"?")[0].decode("ascii", "replace")
