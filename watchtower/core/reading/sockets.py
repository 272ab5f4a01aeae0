"""Reads the description of a socket: "tcp 10.0.0.1:2000 -> 10.0.0.2:3000"."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address
from typing import NamedTuple

UNANSWERED = "unanswered"
"""The last word of a connection whose other end has not answered for 7 s."""


class Ends(NamedTuple):
    """The addresses of both ends of a connection, without their ports."""

    local: str
    remote: str

    @property
    def is_on_one_node(self) -> bool:
        """Return whether both ends are on the same node."""
        return self.local == self.remote or ip_address(self.remote).is_loopback


@lru_cache(maxsize=4096)
def read_ends(target: str) -> Ends | None:
    """Return both ends of a connection; None if the text does not describe one."""
    kind, _, rest = target.partition(" ")
    local, arrow, remote = rest.partition(" -> ")
    if not arrow or kind not in ("tcp", "udp"):
        return None
    try:
        return Ends(_read_address(local), _read_address(remote))
    except ValueError:
        return None


def read_unanswered(target: str) -> str:
    """Return the address and port that do not answer a connection; empty for other targets."""
    connection = without_answer(target)
    return connection.rpartition(" -> ")[2] if connection != target else ""


def without_answer(target: str) -> str:
    """Return a target without the word for a missing answer. The path of a file may end so, too."""
    connection = target.removesuffix(f" {UNANSWERED}")
    return connection if read_ends(connection) is not None else target


def _read_address(text: str) -> str:
    host, _, _ = text.rpartition(":")
    return str(ip_address(host.removeprefix("[").removesuffix("]")))


def is_server_end(target: str) -> bool:
    """Return whether a socket waits for clients, or is a server's end of a Unix connection.

    The client's end has no path. The path may be relative, as the server bound it. Which end of a
    TCP connection opened it is not known.
    """
    return is_listening(target) or target.startswith("unix socket ")


def is_listening(target: str) -> bool:
    """Return whether a target is a socket that accepts connections, not a path that ends so."""
    return target.startswith(("tcp ", "unix ")) and target.endswith(" listening")
