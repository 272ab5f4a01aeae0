"""What the record socket must not do to a process: tried without torch."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from heartbeat_trainer import DEADLINE_S, a_clean_environment
from watchtower_heartbeat import record_socket


def test_looking_for_the_servers_socket_changes_no_other_one(tmp_path: Path) -> None:
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


NO_ROOM = """
import os, resource, watchtower_heartbeat.record_socket as it
it._check_threads()
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(64011, 64011, 64011)
    os.setresuid(64011, 64011, 64011)
resource.setrlimit(resource.RLIMIT_NPROC, (5, 5))
try:
    it._check_threads()
except OSError as error:
    print(error)
"""


def test_without_room_for_its_threads_there_is_no_server_that_would_abort_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_ROOM],
        env=a_clean_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert done.stdout.startswith("no room for")
