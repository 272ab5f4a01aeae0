"""Describes a socket by its inode, from /proc/PID/net: both ends of TCP, or the Unix socket's
path.
"""

from __future__ import annotations

import socket
import struct

from agent.procfs import Proc
from watchtower.wire.sockets import format_connection, format_listening, format_unix

MAX_TABLE_BYTES = 8 << 20
"""About 50,000 connections. For further ones the inode is shown instead of the address."""

_ADDRESS, _PEER, _STATE, _INODE = 1, 2, 3, 9
_LISTEN, _OPENING = "0A", "02"

_RETRIES = 6
"""Column of the number of times that the kernel has sent the request for a connection again."""

MANY_RETRIES = 3
"""A request was sent again after 1, 3 and 7 s, so it is unanswered for 7 s at least."""

_UNIX_INODE = 6
"""Column of /proc/net/unix. The path follows it if the socket is bound to one."""


class SocketTables:
    """The tables of each network namespace, read once, because a node may have 50,000
    connections.

    Each is indexed at its first use. A search of its text for every descriptor would take 20 ms
    each, and a round describes some thousands of them.
    """

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._tables: dict[tuple[str, str], dict[bytes, bytes]] = {}

    def describe(self, pid: int, inode: int) -> str:
        """Return the text for a socket, as `wire.sockets` describes it; empty if its inode is in
        none of the tables.
        """
        wanted = str(inode).encode()
        for name in ("net/tcp", "net/tcp6"):
            line = self._table(pid, name).get(wanted)
            if line is not None:
                return _describe([field.decode("ascii", "replace") for field in line.split()])
        line = self._table(pid, "net/unix", _UNIX_INODE).get(wanted)
        if line is not None:
            path = b" ".join(line.split()[_UNIX_INODE + 1 :]).decode("utf-8", "replace")
            return format_unix(path)
        return ""

    def _table(self, pid: int, name: str, column: int = _INODE) -> dict[bytes, bytes]:
        """Return the lines of a table by their inode, which is in this column."""
        key = (self._proc.link(pid, "ns/net") or str(pid), name)
        if key not in self._tables:
            text = self._proc.try_read(pid, name, MAX_TABLE_BYTES)
            self._tables[key] = _index(text, column)
        return self._tables[key]


def _index(table: bytes, column: int) -> dict[bytes, bytes]:
    """Return the lines by the text in a column; of several, the first."""
    lines: dict[bytes, bytes] = {}
    for line in table.split(b"\n"):
        fields = line.split(None, column + 1)
        if len(fields) > column:
            lines.setdefault(fields[column].strip(), line)
    return lines


def _describe(fields: list[str]) -> str:
    try:
        local = parse_address(fields[_ADDRESS])
        if fields[_STATE] == _LISTEN:
            return format_listening(local)
        peer = parse_address(fields[_PEER])
        return format_connection(local, peer, is_answered=not _is_unanswered(fields))
    except (IndexError, ValueError):
        return ""


def _is_unanswered(fields: list[str]) -> bool:
    # The last line of a table may be cut.
    if len(fields) <= _INODE or fields[_STATE] != _OPENING:
        return False
    return int(fields[_RETRIES], 16) >= MANY_RETRIES


def parse_address(text: str) -> str:
    """Parse "0100007F:1F90": the address as 32-bit words in the machine's own byte order."""
    words, colon, port = text.partition(":")
    if not colon or len(words) not in (8, 32):
        raise ValueError(f"invalid address: {text}")
    raw = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    if len(raw) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, raw)}:{int(port, 16)}"
    if raw.startswith(b"\0" * 10 + b"\xff\xff"):  # IPv4 in an IPv6 socket
        return f"{socket.inet_ntop(socket.AF_INET, raw[12:])}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, raw)}]:{int(port, 16)}"
