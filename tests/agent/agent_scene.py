"""Helpers for tests of the agent: a tower that records, and what it is sent."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import socket
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from watchtower_heartbeat.layout import (
    MAGIC,
    MAGIC_AT,
    PAGE_SIZE,
    SIZE_AT,
    VERSION,
    VERSION_AT,
)
from watchtower_heartbeat.page import PageView, decode

from agent.clocks import Moment
from agent.delivery.dump_queue import DumpLoss, WaitingDump
from agent.delivery.spool import Spool
from agent.dumpers.collectives import CollectiveLogs
from agent.dumpers.python_stacks import PythonStacks
from agent.dumps.round import RoundTaker
from agent.procfs import Proc
from tests.waiting import PATIENCE_S


def a_view(**words: Any) -> PageView:
    """The heartbeat of a page that contains only these words."""
    page = bytearray(PAGE_SIZE)
    page[MAGIC_AT : MAGIC_AT + len(MAGIC)] = MAGIC
    page[VERSION_AT : VERSION_AT + 8] = VERSION.to_bytes(8, sys.byteorder)
    page[SIZE_AT : SIZE_AT + 8] = PAGE_SIZE.to_bytes(8, sys.byteorder)
    return replace(decode(bytes(page)), **words)


def a_taker(
    proc: Proc, stacks: PythonStacks, count: Callable[[str], None] = lambda _: None
) -> RoundTaker:
    """Return what takes rounds with stacks and collective logs only, and no child of ours."""
    return RoundTaker(proc, (CollectiveLogs(proc), stacks), count)


class RecordingTower:
    """A real HTTP server that keeps what it is sent and answers what the test says."""

    def __init__(self, port: int = 0) -> None:
        self.reports: list[dict[str, Any]] = []
        self.dumps: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.deadline_s: float | None = None
        self.report_interval_s = 0.0
        self.orders: list[dict[str, Any]] = []
        self.missing: list[dict[str, Any]] = []
        self.dump_answers: list[tuple[int, bytes]] = []
        self.report_answers: list[tuple[int, bytes]] = []
        self.get_answer = b'{"version": 1}'
        self.connections: list[socket.socket] = []
        tower = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def setup(self) -> None:
                super().setup()
                tower.connections.append(self.connection)

            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(tower.get_answer)))
                self.end_headers()
                self.wfile.write(tower.get_answer)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, answer = tower.answer(self.path, body, dict(self.headers))
                self.send_response(status)
                kind = "application/problem+json" if status >= 400 else "application/json"
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass

        self._server = Server(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def answer(self, path: str, body: Any, headers: dict[str, str]) -> tuple[int, bytes]:
        """Record a message and return status and body."""
        self.headers.append(headers)
        if path == "/ingest/v1/dumps":
            if self.dump_answers:
                return self.dump_answers.pop(0)
            self.dumps.append(body)
            return 200, json.dumps({"id": body["id"]}).encode()
        assert path == "/ingest/v1/report"
        self.reports.append(body)
        if self.report_answers:
            return self.report_answers.pop(0)
        return 200, json.dumps(self._reply(body)).encode()

    def _reply(self, report: dict[str, Any]) -> dict[str, Any]:
        orders, self.orders = self.orders, []
        launches = {rank["job"]: _launch_of(rank) for rank in report["ranks"]}
        orders = [{**launches.get(order["job"], {}), **order} for order in orders]
        deadlines = [
            {**_launch_of(rank), "rank": rank["rank"], "after_s": self.deadline_s}
            for rank in report["ranks"]
            if self.deadline_s is not None
        ]
        return {
            "version": 1,
            "deadlines": deadlines,
            "orders": orders,
            "report_interval_s": self.report_interval_s,
            "missing": self.missing,
        }

    def ranks(self) -> dict[int, dict[str, Any]]:
        """The newest report's ranks by number."""
        return {rank["rank"]: rank for rank in self.reports[-1]["ranks"]} if self.reports else {}

    def close(self) -> None:
        """Stop listening and drop what is open."""
        self._server.shutdown()
        self._server.server_close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_S)


def _launch_of(rank: dict[str, Any]) -> dict[str, str]:
    return {name: rank[name] for name in ("job", "owner", "launch")}


def a_dump(body: bytes = b'{"id": "x"}', at: float = 1.8e9, owner: str = "") -> WaitingDump:
    taken = Moment(boot_id="b", boottime_s=5.0, wall_s=at)
    return WaitingDump(id=uuid.uuid4().hex, job="llama", taken=taken, body=body, owner=owner)


class Losses(Counter[DumpLoss]):
    """Lost reports and dumps, by reason."""

    def count(self, loss: DumpLoss) -> None:
        self[loss] += 1


def spool_files(spool: Spool) -> list[str]:
    """Return the names of the files in a spool, sorted, without its lock."""
    return sorted(set(os.listdir(spool.path)) - {"lock"})
