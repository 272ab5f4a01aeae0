"""Addresses of a tower and the token for it: options, and checks before anything is sent."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from watchtower.access.tls import CA_VARIABLE, is_loopback
from watchtower.access.tokens import FILE_VARIABLE, VARIABLE, ClientToken

DEFAULT_PORT = 19660
"""Above the ports of most Prometheus exporters, below the ephemeral ports."""

LOCAL_URL = f"http://127.0.0.1:{DEFAULT_PORT}"
"""The address of a tower without options, and that of agents and commands without one."""

URL_VARIABLE = "WATCHTOWER_URL"

MAX_TOWERS = 8
"""Addresses of one option. A request that no tower accepts is sent to each of them."""

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
    """Several URLs are separated by commas."""
    token: ClientToken = field(default_factory=ClientToken)
    ca_file: str = ""
    """Empty: the system's authorities."""


def add_tower(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the tower and the token."""
    parser.add_argument(
        "--tower",
        default=default_url(),
        action=_AddUrl,
        type=_read_urls,
        metavar="URL",
        help="address of the tower; of several towers, give each, or separate them by commas "
        f"(default: ${URL_VARIABLE}, else {LOCAL_URL})",
    )
    parser.add_argument(
        "--token-file",
        default="",
        metavar="FILE",
        help=f"file with a token (default: ${FILE_VARIABLE}; or a token in ${VARIABLE})",
    )
    parser.add_argument(
        "--ca-file",
        default=os.environ.get(CA_VARIABLE, ""),
        metavar="FILE",
        help=f"authorities to trust (default: ${CA_VARIABLE}, else the authorities of the system)",
    )
    parser.add_argument(
        "--insecure", action="store_true", help="send the token over plain http:// anyway"
    )


def default_url() -> str:
    """Return the address of the tower if no option names one. It is not checked."""
    return os.environ.get(URL_VARIABLE) or LOCAL_URL


class _AddUrl(argparse.Action):
    """Joins all addresses that were given. The first one replaces the default."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Add one. Raises ArgumentError if there are too many."""
        before = getattr(namespace, "given_towers", "")
        try:
            namespace.tower = check_tower_urls(f"{before},{values}" if before else str(values))
        except AddressError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        namespace.given_towers = namespace.tower


def _read_urls(text: str) -> str:
    try:
        return check_tower_urls(text)
    except AddressError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def split_urls(text: str) -> list[str]:
    """Return the addresses of a text that separates them by commas, each once."""
    return list(dict.fromkeys(url for part in text.split(",") if (url := part.strip())))


def check_tower_urls(text: str) -> str:
    """Return addresses as `check_tower_url` does, separated by commas. Raises AddressError."""
    urls = split_urls(",".join(map(check_tower_url, split_urls(text) or [text])))
    if len(urls) > MAX_TOWERS:
        raise AddressError(f"{len(urls)} tower URLs given, allowed: {MAX_TOWERS}")
    return ",".join(urls)


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
    for parts in map(urlsplit, split_urls(url)):
        if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise AddressError(UNENCRYPTED_TOKEN)


def _invalid(url: str) -> str:
    return f"invalid tower URL {url[:MAX_SHOWN]!r}"
