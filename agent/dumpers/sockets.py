"""Both ends of a TCP connection by its inode, from the tables under /proc/PID/net."""

from __future__ import annotations

import socket
import struct

from agent.procfs import Proc

MAX_TABLE_BYTES = 8 << 20
"""About 50,000 connections; who has more gets the inode instead of the address."""

_ADDRESS, _PEER, _STATE, _INODE = 1, 2, 3, 9
_LISTEN = "0A"


def describe_socket(proc: Proc, pid: int, inode: int) -> str:
    """Return "tcp 10.0.0.1:2000 -> 10.0.0.2:3000" for the socket, empty when it is no TCP one."""
    wanted = str(inode).encode()
    for table in ("net/tcp", "net/tcp6"):
        raw = proc.try_read(pid, table, MAX_TABLE_BYTES)
        if wanted not in raw:
            continue
        for line in raw.split(b"\n")[1:]:
            fields = line.split()
            if len(fields) > _INODE and fields[_INODE] == wanted:
                return _describe([field.decode("ascii", "replace") for field in fields])
    return ""


def _describe(fields: list[str]) -> str:
    try:
        local = parse_address(fields[_ADDRESS])
        if fields[_STATE] == _LISTEN:
            return f"tcp {local} listening"
        return f"tcp {local} -> {parse_address(fields[_PEER])}"
    except ValueError:
        return ""


def parse_address(text: str) -> str:
    """Parse "0100007F:1F90": the address as 32-bit words in the machine's own byte order."""
    words, colon, port = text.partition(":")
    if not colon or len(words) not in (8, 32):
        raise ValueError(f"no address: {text}")
    raw = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    if len(raw) == 4:
        return f"{socket.inet_ntop(socket.AF_INET, raw)}:{int(port, 16)}"
    if raw.startswith(b"\0" * 10 + b"\xff\xff"):  # IPv4 in an IPv6 socket
        return f"{socket.inet_ntop(socket.AF_INET, raw[12:])}:{int(port, 16)}"
    return f"[{socket.inet_ntop(socket.AF_INET6, raw)}]:{int(port, 16)}"
