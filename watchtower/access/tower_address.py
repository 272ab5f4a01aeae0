"""Address of a tower, and the token for it. Both are checked before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from watchtower.access.tls import is_loopback
from watchtower.access.tokens import ClientToken

DEFAULT_PORT = 19660
"""Above the ports of most Prometheus exporters, below the ephemeral ports."""

LOCAL_URL = f"http://127.0.0.1:{DEFAULT_PORT}"
"""The address of a tower without options, and that of agents and commands without one."""

URL_VARIABLE = "WATCHTOWER_URL"

MAX_SHOWN = 200
"""Characters of an invalid URL that an error quotes."""

UNENCRYPTED_TOKEN = (
    "refused to send the token without encryption, because others on the network could read it: "
    "use https://, or add --insecure to send it"
)


class AddressError(ValueError):
    """The address of a tower is not usable. The message contains the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerAddress:
    """URL of the tower, the client's token, and the CA file that the client trusts."""

    url: str
    token: ClientToken = field(default_factory=ClientToken)
    ca_file: str = ""
    """Empty: the system's authorities."""


def check_tower_url(url: str) -> str:
    """Return the URL with a port and without a slash at its end. Raises AddressError.

    A URL without a port gets the tower's default port, also with https://. The port of a proxy on
    port 443 must be in the URL.
    """
    if not url.startswith(("http://", "https://")):
        raise AddressError(f"{_invalid(url)}: must start with http:// or https://")
    try:
        parts = urlsplit(url)
        port = parts.port
        has_host = bool(parts.hostname) and port != 0
    except ValueError:  # an invalid port, or brackets without an IPv6 address
        port, has_host = None, False
    if not has_host or not url.isprintable() or " " in url:
        raise AddressError(f"{_invalid(url)}: must be http://HOST[:PORT] or https://HOST[:PORT]")
    if parts.username is not None or parts.query or parts.fragment:
        raise AddressError(f"{_invalid(url)}: must not have a user, a query or a fragment")
    if port is None:
        parts = parts._replace(netloc=f"{parts.netloc.rstrip(':')}:{DEFAULT_PORT}")
    return parts.geturl().rstrip("/")


def check_token_is_safe(url: str, token: ClientToken, *, insecure: bool) -> None:
    """Raise AddressError if the token would be sent over the network without encryption."""
    if not token or insecure:
        return
    parts = urlsplit(url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise AddressError(UNENCRYPTED_TOKEN)


def _invalid(url: str) -> str:
    return f"invalid tower URL {url[:MAX_SHOWN]!r}"
