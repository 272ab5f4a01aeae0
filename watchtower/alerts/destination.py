"""A destination of alerts: a name and one call that delivers an alert, and the HTTPS POST that most
of them need.

The proxies of the environment (`HTTPS_PROXY`, `NO_PROXY`) are used, because chat services are
outside of most clusters. Redirects are not followed: the secret in a URL or a header goes to the
configured address only.
"""

from __future__ import annotations

import base64
import html
import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from email.message import Message
from typing import IO, Protocol, runtime_checkable
from urllib.parse import unquote, urlsplit

from watchtower.access.tower_connection import bounded_reply
from watchtower.alerts.alert import Alert
from watchtower.writing.printable import printable


class DeliveryError(Exception):
    """An alert could not be delivered. The message contains the reason, without any secret."""

    def __init__(
        self, reason: str, *, is_permanent: bool = False, retry_after_s: float | None = None
    ) -> None:
        """`is_permanent`: a retry fails until the configuration or the destination changes.

        `retry_after_s`: the destination asks for this many seconds without requests.
        """
        super().__init__(reason)
        self.is_permanent, self.retry_after_s = is_permanent, retry_after_s


class Destination(Protocol):
    """One place to which alerts are sent."""

    @property
    def name(self) -> str:
        """A word for logs, metrics and commands, such as "slack"."""

    @property
    def repeat_s(self) -> float | None:
        """Seconds after which an open alert must be sent again; None: never."""

    @property
    def end_delay_s(self) -> float:
        """Seconds by which the end of an alert, or its acknowledgement, is delayed."""

    @property
    def joins_outages(self) -> bool:
        """Whether an outage is one alert, with its incidents in `members`. False if the
        destination groups alerts itself: each incident is then an alert."""

    def deliver(self, alert: Alert, receipt: str) -> str:
        """Bring the destination to the state of `alert`. Raises DeliveryError.

        `receipt` is the result of the last delivery with this key (`alert.incident`), empty before
        the first one. The result is the new receipt. The call blocks, and must return within 30 s.
        The same alert may be delivered twice if the tower is killed in between: use a key for each
        version where the destination has one.
        """


@runtime_checkable
class ListDestination(Destination, Protocol):
    """A destination that accepts many alerts in one request. It has no receipts."""

    @property
    def most(self) -> int:
        """Alerts that one request may contain."""

    def deliver_all(self, alerts: Sequence[Alert]) -> None:
        """Bring the destination to the state of all these alerts. Raises DeliveryError.

        It accepts the valid ones, also if it refuses another one of them.
        """


CONNECT_S, REPLY_S = 5.0, 10.0
"""Seconds to connect and between two pieces of a reply, and for the whole reply."""

MAX_REPLY = 65_536
"""Bytes of a reply that are read."""

MAX_ERROR = 4096
"""Bytes of a refusal that are read."""

MAX_REASON = 200
"""Characters of a refusal that the log shows: the text is of another server."""

LEAST_SECRET = 6
"""Characters of the shortest part of a URL or a header that may be a secret."""

SEPARATORS = re.compile(r"[/?&=#]")
"""Between the parts of a URL's path and query."""

RETRY = frozenset({408, 425, 429})
"""Statuses below 500 after which the same request may succeed."""

REDIRECTS = frozenset({301, 302, 303, 307, 308})


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


class _Connection(http.client.HTTPConnection):
    response_class = bounded_reply(REPLY_S, MAX_REPLY)


class _SecureConnection(http.client.HTTPSConnection):
    response_class = bounded_reply(REPLY_S, MAX_REPLY)


class _Handler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Connection, req)


class _SecureHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_SecureConnection, req)


_OPENER = urllib.request.build_opener(_NoRedirect, _Handler, _SecureHandler)


def post(url: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    """Send JSON and return the body of the reply, at most `MAX_REPLY` bytes of it.

    Raises DeliveryError. Its text names the host, but no other part of the URL and no header: they
    may be secret.
    """
    host, secrets = urlsplit(url).hostname or "the address", _find_secrets(url, headers)
    url, headers = _move_password(url, headers)
    request = urllib.request.Request(
        url, data=body, headers={"Content-Type": "application/json", **headers}, method="POST"
    )
    try:
        with _OPENER.open(request, timeout=CONNECT_S) as reply:
            received: bytes = reply.read(MAX_REPLY)
            return received
    except urllib.error.HTTPError as error:
        with error:
            raise _explain(host, error, secrets) from None
    except (ValueError, http.client.InvalidURL):
        raise DeliveryError(f"{host}: the URL cannot be used") from None  # the error quotes it
    except (OSError, http.client.HTTPException) as error:
        raise DeliveryError(f"{host}: {_explain_failure(error, secrets)}") from None


def _move_password(url: str, headers: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
    """Return a URL without its user and password, and the headers with them."""
    parts = urlsplit(url)
    before, found, place = parts.netloc.rpartition("@")
    if not found:
        return url, headers
    word = base64.b64encode(unquote(before).encode()).decode()
    return parts._replace(netloc=place).geturl(), {**headers, "Authorization": f"Basic {word}"}


def _explain_failure(error: OSError | http.client.HTTPException, secrets: frozenset[str]) -> str:
    """Return why there is no reply, or no valid one. What came instead of HTTP is not quoted."""
    if isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
        return "the reply is not HTTP"
    return _quote(str(getattr(error, "reason", error)), secrets) or "the connection failed"


def _explain(host: str, error: urllib.error.HTTPError, secrets: frozenset[str]) -> DeliveryError:
    try:
        text = _quote(error.read(MAX_ERROR).decode("utf-8", "replace"), secrets)
    except (OSError, http.client.HTTPException):
        text = ""
    if error.code in REDIRECTS:
        text = "redirects are not followed, so configure the address that it leads to"
    reason = f"{host} answered HTTP {error.code}{f': {text}' if text else ''}"
    after = error.headers.get("Retry-After", "") if error.headers else ""
    return DeliveryError(
        reason,
        is_permanent=error.code < 500 and error.code not in RETRY,
        retry_after_s=float(after) if after.isdecimal() and len(after) < 7 else None,
    )


def _quote(text: str, secrets: frozenset[str]) -> str:
    """Return text of a server for one line; empty if it contains a secret: many servers quote the
    path in "not found"."""
    if any(secret in each for secret in secrets for each in (text, html.unescape(text))):
        return ""
    return printable(text, MAX_REASON).strip()


def _find_secrets(url: str, headers: Mapping[str, str]) -> frozenset[str]:
    """Return the parts of a request that must not be in a log, as sent and decoded."""
    parts = urlsplit(url)
    sent = SEPARATORS.split(f"{parts.path}?{parts.query}")
    sent += [parts.username or "", parts.password or ""]
    sent += [word for value in headers.values() for word in value.split()]
    words = (each for word in sent for each in (word, unquote(word)))
    return frozenset(word for word in words if len(word) >= LEAST_SECRET)
