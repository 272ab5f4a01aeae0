"""Finding the socket of the record server changes no other socket."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from watchtower_heartbeat import record_socket


def test_searching_the_servers_socket_changes_no_other_one(tmp_path: Path) -> None:
    path = os.path.relpath(tmp_path / "named")  # absolute it may be too long for a socket
    pair = socket.socketpair()
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()
    socket.setdefaulttimeout(30)
    try:
        assert record_socket._find_listener(path) == server.fileno()
        assert record_socket._find_listener(f"{path}-other") == -1
    finally:
        socket.setdefaulttimeout(None)
    for each in (*pair, server):
        assert os.get_blocking(each.fileno())
        each.close()
