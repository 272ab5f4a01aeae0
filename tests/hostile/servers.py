"""A tower's server in a thread, and clients with sockets of their own."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
from pathlib import Path

import uvicorn

from benchmarks import junk
from tests.diagnosers import in_thread
from tests.tower.test_api import recorded
from tests.waiting import wait_until
from watchtower.access.tokens import TokenBook
from watchtower.api.connections import ConnectionLimit, connection_class
from watchtower.api.security import AccessRules, Refusals
from watchtower.api.visitors import Visitors
from watchtower.app import make_app
from watchtower.policy import Policy
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.tower.tower import Tower

SOON_S = 0.4
POST = b"POST /ingest/v1/report HTTP/1.1\r\nHost: tower\r\n"


class Server:
    """The tower's server in a thread, so that its deadlines can be made short."""

    def __init__(self, folder: Path, limit: int = 100, agent_token: str = "") -> None:
        self.refused: list[str] = []
        self.limit = ConnectionLimit(limit, self.refused.append)
        self.refusals = Refusals()
        self.store = SqliteStore(folder / "watchtower.db")
        tower = Tower(Policy(), self.store, self.store.recall(), Clock(), in_thread)
        book = TokenBook({}, {"WATCHTOWER_AGENT_TOKEN": agent_token})
        self.visitors = Visitors(book)
        app = make_app(tower, AccessRules(visitors=self.visitors, refusals=self.refusals))
        self.tower, self.direct = tower, app.direct
        config = uvicorn.Config(
            app,
            http=connection_class(self.limit, app.direct),
            ws="none",
            log_config=None,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listener]}, daemon=True
        )
        self._thread.start()
        wait_until(lambda: self._server.started, "the server starts")

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        self._listener.close()
        self.store.close()

    def connect(self, head: bytes = b"") -> socket.socket:
        return junk.connect(self.address, head)

    def report(self) -> int:
        """Report as a good agent does; returns the status."""
        connection = http.client.HTTPConnection(*self.address, timeout=10)
        try:
            connection.request("POST", "/ingest/v1/report", recorded("report.json"))
            return connection.getresponse().status
        finally:
            connection.close()


def read_all(connection: socket.socket) -> bytes:
    """Everything until the other side closes, which it must."""
    connection.settimeout(20)
    parts = []
    with contextlib.suppress(ConnectionResetError), connection:
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def read_reply(connection: socket.socket) -> bytes:
    """One reply with its body. Its parts may arrive one after the other."""
    reply = b""
    while b"\r\n\r\n" not in reply:
        part = connection.recv(4000)
        assert part, reply
        reply += part
    head, _, body = reply.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    while length and len(body) < int(length[1]):
        part = connection.recv(4000)
        assert part, reply
        body += part
    return head + b"\r\n\r\n" + body
