"""The address of a tower and the token for it. Both are checked before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from watchtower.access.tls import is_loopback
from watchtower.access.tokens import ClientToken

DEFAULT_PORT = 19660
"""Above the range other exporters crowd in, below the ephemeral ports."""

URL_VARIABLE = "WATCHTOWER_URL"

MAX_SHOWN = 200
"""Characters of a wrong URL that an error quotes."""

SHOWN_TOKEN = (
    "the token would cross the network readable by anybody on the way: "
    "use https://, or add --insecure to send it all the same"
)


class AddressError(ValueError):
    """The address of a tower cannot be used; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerAddress:
    """The URL of a tower, the token to show, and the certificate authorities to trust."""

    url: str
    token: ClientToken = field(default_factory=ClientToken)
    ca_file: str = ""
    """Empty: the system's authorities."""


def check_tower_url(url: str) -> str:
    """Return the URL with a port and without a slash at its end. Raises AddressError.

    A URL without a port gets the port of a tower, also with https://: a proxy on port 443 has to be
    named with its port.
    """
    if not url.startswith(("http://", "https://")):
        raise AddressError(f"{_said(url)}: must start with http:// or https://")
    try:
        parts = urlsplit(url)
        port = parts.port
        has_host = bool(parts.hostname) and port != 0
    except ValueError:  # a port that is not one, brackets that are not an IPv6 address
        port, has_host = None, False
    if not has_host or not url.isprintable() or " " in url:
        raise AddressError(f"{_said(url)}: must be http://HOST[:PORT] or https://HOST[:PORT]")
    if parts.username is not None or parts.query or parts.fragment:
        raise AddressError(f"{_said(url)}: must not have a user, a query or a fragment")
    if port is None:
        parts = parts._replace(netloc=f"{parts.netloc.rstrip(':')}:{DEFAULT_PORT}")
    return parts.geturl().rstrip("/")


def check_token_is_safe(url: str, token: ClientToken, *, insecure: bool) -> None:
    """Refuse to send a token that others could read on its way. Raises AddressError."""
    if not token or insecure:
        return
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise AddressError(SHOWN_TOKEN)


def _said(url: str) -> str:
    return f"invalid tower URL {url[:MAX_SHOWN]!r}"
