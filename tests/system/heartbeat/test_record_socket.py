"""Harm that the record socket must not do to a process: tried without torch."""

from __future__ import annotations

import subprocess
import sys

from tests.system.heartbeat.heartbeat_trainer import DEADLINE_S, a_clean_environment

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
    assert done.stdout.startswith("cannot start")
