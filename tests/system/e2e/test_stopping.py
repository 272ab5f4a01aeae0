"""SIGTERM ends the tower within five seconds and without a traceback, whatever is under way."""

from __future__ import annotations

import contextlib
import http.client
import json
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.towers import JSON
from watchtower.service.interpreter import module_command

MESSAGES = Path(__file__).parents[2] / "wire" / "messages"

pytestmark = pytest.mark.e2e


class Running:
    """One tower process and the connections that a test opens to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = module_command("watchtower", "serve", "--port", "0")
        # A pipe, so that a limit on the size of files does not concern what it logs.
        self.process = subprocess.Popen(
            [*command, "--data-dir", str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.port = int(self.process.stdout.readline().strip().rpartition(":")[2])
        self.connections: list[socket.socket | http.client.HTTPConnection] = []
        self.post("/ingest/v1/report", "report.json").getresponse().read()

    def send(self, half: bytes) -> None:
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.sendall(half)
        self.connections.append(connection)

    def post(self, path: str, name: str) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request("POST", path, (MESSAGES / name).read_bytes(), JSON)
        self.connections.append(connection)
        return connection

    def get(self, path: str) -> dict:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return json.load(answer)

    def stop(self) -> tuple[float, str]:
        """Send SIGTERM; seconds until it was gone, and what it logged."""
        begun = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0
        took = time.monotonic() - begun
        return took, self.process.stderr.read()


@pytest.fixture
def tower(tmp_path: Path) -> Iterator[Running]:
    running = Running(tmp_path)
    yield running
    running.process.kill()
    running.process.wait()
    running.process.stdout.close()
    running.process.stderr.close()
    for connection in running.connections:
        connection.close()


def test_half_sent_messages_and_kept_connections_do_not_hold_it(tower: Running):
    head = (
        b"POST /ingest/v1/dumps HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 999\r\n"
        b"Content-Type: application/json\r\n"
    )
    tower.send(head)
    tower.send(head + b'\r\n{"version"')
    took, log = tower.stop()
    assert took < 5
    assert "Traceback" not in log


def test_a_store_that_hangs_does_not_hold_it_and_nothing_is_acknowledged(tower: Running):
    with contextlib.closing(sqlite3.connect(tower.folder / "watchtower.db")) as other:
        other.execute("BEGIN IMMEDIATE")  # whoever writes now waits for us
        waiting = tower.post("/ingest/v1/dumps", "dumps.json")
        took, log = tower.stop()
        assert took < 5
        assert "Traceback" not in log, log
        assert waiting.getresponse().status == 503
        assert other.execute("SELECT count(*) FROM dumps").fetchone() == (0,)


def test_what_was_not_written_yet_is_written_before_the_end(tower: Running):
    tower.stop()
    with contextlib.closing(sqlite3.connect(tower.folder / "watchtower.db")) as db:
        assert db.execute("SELECT job FROM attempts").fetchall() == [("llama-70b",)]


def test_work_that_never_ends_does_not_hold_the_exit():
    code = (
        "import time; from watchtower.service.calls import DaemonExecutor; "
        "executor = DaemonExecutor('slow'); "
        "executor.submit(lambda: time.sleep(60)); print(executor.stop(0.1))"
    )
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout == "False\n"
    assert time.monotonic() - begun < 10


def test_a_tower_without_room_on_its_disk_says_so_and_stops_like_any_other(tower: Running):
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.prlimit(tower.process.pid, resource.RLIMIT_FSIZE, (0, most))
    refused = tower.post("/ingest/v1/dumps", "dumps.json").getresponse()
    assert refused.status == 503
    assert "the dumps could not be stored" in json.loads(refused.read())["detail"]
    ready = tower.get("/readyz")
    assert ready["ready"]
    assert ready["store"].startswith("fails since")
    assert tower.get("/api/v1/jobs/llama-70b/verdict")["job"] == "llama-70b"
    resource.prlimit(tower.process.pid, resource.RLIMIT_FSIZE, (most, most))
    assert tower.post("/ingest/v1/dumps", "dumps.json").getresponse().status == 200
    resource.prlimit(tower.process.pid, resource.RLIMIT_FSIZE, (0, most))
    took, log = tower.stop()
    assert took < 5
    assert "Traceback" not in log
