"""The text for a socket, such as "tcp 10.0.0.1:2000 -> 10.0.0.2:3000". Agents write it as the
target of a system call, and towers read it.

A path is the text of a file, and is at the end of the text of a Unix socket. It may contain any of
these words, so that only a text that has the whole form counts.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address
from typing import NamedTuple

_TCP, _UNIX = "tcp ", "unix socket"
_ARROW, _LISTENING, _UNANSWERED = " -> ", " listening", " unanswered"


class Ends(NamedTuple):
    """The addresses of both ends of a connection, without their ports."""

    local: str
    remote: str

    @property
    def is_on_one_node(self) -> bool:
        """Return whether both ends are on the same node."""
        return self.local == self.remote or ip_address(self.remote).is_loopback


def format_listening(address: str) -> str:
    """Return the text for a TCP socket that accepts connections at this address and port."""
    return f"{_TCP}{address}{_LISTENING}"


def format_connection(local: str, remote: str, *, is_answered: bool = True) -> str:
    """Return the text for a TCP connection. `is_answered`: False if the other end has not answered
    for 7 s."""
    return f"{_TCP}{local}{_ARROW}{remote}{'' if is_answered else _UNANSWERED}"


def format_unix(path: str) -> str:
    """Return the text for a Unix socket. `path` is empty if it is not bound to one."""
    return f"{_UNIX} {path}".rstrip()


@lru_cache(maxsize=4096)
def read_ends(target: str) -> Ends | None:
    """Return both ends of a connection; None if the text does not describe one."""
    local, arrow, remote = target.removeprefix(_TCP).partition(_ARROW)
    if not arrow or not target.startswith(_TCP):
        return None
    try:
        return Ends(_read_address(local), _read_address(remote))
    except ValueError:
        return None


def read_unanswered(target: str) -> str:
    """Return the address and port that do not answer a connection; empty for other targets."""
    return read_remote(target) if without_answer(target) != target else ""


def read_remote(target: str) -> str:
    """Return the address and port of the other end of a connection; empty for other targets."""
    connection = without_answer(target)
    return connection.rpartition(_ARROW)[2] if read_ends(connection) is not None else ""


def without_answer(target: str) -> str:
    """Return a target without the word for a missing answer."""
    connection = target.removesuffix(_UNANSWERED)
    return connection if read_ends(connection) is not None else target


def is_server_end(target: str) -> bool:
    """Return whether a socket waits for clients, or is a server's end of a Unix connection.

    The client's end has no path. The path may be relative, as the server bound it. Which end of a
    TCP connection opened it is not known.
    """
    return is_listening(target) or target.startswith(f"{_UNIX} ")


def is_listening(target: str) -> bool:
    """Return whether a target is a TCP socket that accepts connections."""
    return read_listening_port(target) is not None


def read_listening_port(target: str) -> int | None:
    """Return the port at which a TCP socket accepts connections; None for other targets."""
    if not (target.startswith(_TCP) and target.endswith(_LISTENING)):
        return None
    address = target.removeprefix(_TCP).removesuffix(_LISTENING)
    try:
        _read_address(address)
    except ValueError:
        return None
    return split_port(address)[1]


def split_port(text: str) -> tuple[str, int]:
    """Return address and port of "10.0.0.1:2000" or "[fd00::1]:2000"; 0 for an invalid port."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port) if port.isascii() and port.isdigit() else 0


def _read_address(text: str) -> str:
    """Return the address in "10.0.0.1:2000" or "[fd00::1]:2000". Raises ValueError."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit()):
        raise ValueError(f"invalid port: {port[:16]}")
    return str(ip_address(host.removeprefix("[").removesuffix("]")))
