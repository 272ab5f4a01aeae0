"""One HTTPS POST to a destination, with limits of time and size.

The proxies of the environment (`HTTPS_PROXY`, `NO_PROXY`) are used, because chat services are
outside of most clusters. Redirects are not followed: the secret in a URL or a header goes to the
configured address only.
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.message import Message
from typing import IO
from urllib.parse import urlsplit

from watchtower.alerts.destination import DeliveryError
from watchtower.printable import printable

CONNECT_S, REPLY_S = 5.0, 10.0
"""Seconds between two pieces of a reply, and for the whole reply."""

MAX_REPLY = 65_536
"""Bytes of a reply that are read."""

MAX_REASON = 200

RETRY = frozenset({408, 425, 429})
"""Statuses below 500 after which the same request may succeed."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Message,
        newurl: str,
    ) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def post(url: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    """Send JSON and return the body of the reply, at most `MAX_REPLY` bytes of it.

    Raises DeliveryError. Its text names the host, but neither path nor query: they may be secret.
    """
    host = urlsplit(url).hostname or "the address"
    request = urllib.request.Request(
        url, data=body, headers={"Content-Type": "application/json", **headers}, method="POST"
    )
    try:
        with _OPENER.open(request, timeout=CONNECT_S) as reply:
            return _read(reply)
    except urllib.error.HTTPError as error:
        with error:
            raise _explain(host, error) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise DeliveryError(f"{host}: {printable(str(reason), MAX_REASON)}") from None


def _read(reply: http.client.HTTPResponse) -> bytes:
    until, parts, size = time.monotonic() + REPLY_S, list[bytes](), 0
    while size < MAX_REPLY and (part := reply.read1(MAX_REPLY - size)):
        parts.append(part)
        size += len(part)
        if time.monotonic() > until:
            raise TimeoutError(f"the reply took longer than {REPLY_S:g} s")
    return b"".join(parts)


def _explain(host: str, error: urllib.error.HTTPError) -> DeliveryError:
    try:
        said = printable(error.read(MAX_REASON).decode("utf-8", "replace"), MAX_REASON).strip()
    except (OSError, http.client.HTTPException):
        said = ""
    reason = f"{host} answered HTTP {error.code}{f': {said}' if said else ''}"
    after = error.headers.get("Retry-After", "") if error.headers else ""
    return DeliveryError(
        reason,
        is_permanent=error.code < 500 and error.code not in RETRY,
        retry_after_s=float(after) if after.isdecimal() and len(after) < 7 else None,
    )
