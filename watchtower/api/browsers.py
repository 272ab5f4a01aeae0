"""Requests of browsers: those of other sites are refused, redirects stay in the tower.

Any web page can make a browser send requests to the tower. Such a request has no token. If the
tower has no tokens either, three headers distinguish the request from one of an agent or a command:

* `Host`: a page whose host name resolves to the tower ("DNS rebinding") sends its own host name.
* `Sec-Fetch-Site` and `Origin`: browsers add them, and pages cannot change them.
* `Content-Type`: to send JSON to another site, a page needs that site's permission (CORS). The
  tower never gives it.

`Sec-Fetch-Site` and `Origin` are also checked if a browser adds the rights to a request: by the
cookie of a session, or by a proxy. A form of the tower's own pages must have one of both headers.

All redirects are relative, so that they also work behind a proxy that adds a prefix to the path
(`public_url` with a path).
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, unquote, urlsplit

from starlette.responses import RedirectResponse
from starlette.types import Scope

Headers = Sequence[tuple[bytes, bytes]]

LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
WITH_BODY = ("POST", "PUT", "PATCH")

OWN_SITES = (b"same-origin", b"none")
"""Allowed values of Sec-Fetch-Site: from a page of the tower, or from the address bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The reason why a request is refused."""

    status: int
    reason: str
    """One of `security.REASONS`."""
    detail: str


def find_hosts(host: str, public_url: str, allowed: Iterable[str]) -> frozenset[str]:
    """Return the host names that requests may use for this tower. IP addresses are always valid."""
    names = {host, urlsplit(public_url).hostname or "", socket.gethostname(), *allowed}
    return LOCAL_NAMES | frozenset(_plain(name) for name in names if name)


def find_refusal(
    method: str,
    headers: Headers,
    hosts: frozenset[str],
    public_url: str = "",
    *,
    is_form: bool = False,
) -> Refusal | None:
    """Return why a tower without tokens refuses a request; None if it is allowed.

    `is_form`: the request goes to a form of the tower's own pages.
    """
    named = _values(headers, b"host")
    if len(named) > 1 or not all(_is_known(name, hosts) for name in named):
        shown = named[0].decode("ascii", "replace")[:128]
        return Refusal(
            status=421,
            reason="wrong_host",
            detail=f"{shown!r} is not a known name of this tower: add it to `allowed_hosts` in "
            "[tower], or protect the tower with tokens",
        )
    refusal = find_cross_site(method, headers, public_url, must_be_own=is_form)
    if refusal is not None:
        return refusal
    if method in WITH_BODY and not is_form and not _is_json(_values(headers, b"content-type")):
        return Refusal(
            status=415,
            reason="bad_message",
            detail="the body must be JSON: send it with `Content-Type: application/json`",
        )
    return None


def find_cross_site(
    method: str, headers: Headers, public_url: str = "", *, must_be_own: bool = False
) -> Refusal | None:
    """Return a refusal if a request comes from a page of another site, or None.

    `must_be_own`: a request is also refused if no header shows that it comes from an own page.
    """
    is_own = not _is_cross_site(method, headers, _values(headers, b"host"), public_url)
    if is_own and must_be_own:
        sites = _values(headers, b"sec-fetch-site")
        is_own = sites == [b"same-origin"] or (not sites and bool(_values(headers, b"origin")))
    if is_own:
        return None
    return Refusal(
        status=403,
        reason="cross_site",
        detail="a page of another site may not do this; if this was a page of the tower, set "
        "`public_url` in [tower] to the address that people use",
    )


@lru_cache(maxsize=1024)
def _is_known(name: bytes, hosts: frozenset[str]) -> bool:
    try:
        host = urlsplit(f"//{name.decode('ascii')}").hostname or ""
    except ValueError:
        return False
    return _plain(host) in hosts or _is_address(host)


def _is_address(host: str) -> bool:
    """Return whether `host` is an IP address. DNS rebinding works only with host names."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_cross_site(method: str, headers: Headers, named: Sequence[bytes], public_url: str) -> bool:
    if any(site not in OWN_SITES for site in _values(headers, b"sec-fetch-site")):
        # A person may follow a link in an alert. The page with the link cannot read the reply.
        is_opened = _values(headers, b"sec-fetch-mode") == [b"navigate"]
        is_page = _values(headers, b"sec-fetch-dest") == [b"document"]
        return not (method in SAFE_METHODS and is_opened and is_page)
    own = {name.decode("ascii", "replace").lower() for name in named}
    if public_url:
        own.add(_origin(public_url))
    return any(
        _origin(origin.decode("ascii", "replace")) not in own
        for origin in _values(headers, b"origin")
    )


def _origin(url: str) -> str:
    """Return host and port of a URL as in a Host header; "-" for "null" or an invalid URL."""
    return urlsplit(url).netloc.lower() or "-" if "//" in url else "-"


def _is_json(kinds: Sequence[bytes]) -> bool:
    return len(kinds) == 1 and kinds[0].partition(b";")[0].strip().lower() == b"application/json"


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [bytes(value) for key, value in headers if key == name]


def _plain(host: str) -> str:
    return host.lower().rstrip(".")


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
