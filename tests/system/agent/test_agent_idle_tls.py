"""A tower that closed the idle connection, in good order or not: the next request goes through."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.delivery.shipping import REPLY_LIMITS, ReportSender
from tests.certificates import make_authority
from tests.waiting import PATIENCE_S
from watchtower.access.tower_address import TowerAddress
from watchtower.access.tower_connection import _CLOSED_WHILE_IDLE, TowerConnection
from watchtower.wire import PROTOCOL_VERSION
from watchtower.wire.orders import ReportReply
from watchtower.wire.report import Report

ANSWER = b'{"version": 1, "report_interval_s": %d}'
"""Each one differs from the one before: an agent does not hand on an equal reply."""


class TlsServer:
    """Answers one request a connection, and then ends it in the way it is told to."""

    def __init__(self, folder: Path, end: Callable[[ssl.SSLSocket], None]) -> None:
        authority = make_authority(folder)
        self.ca_file = str(authority.file)
        self._idle, self._ended = threading.Semaphore(0), threading.Semaphore(0)
        self._answered = 0
        self._end = end
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(*authority.sign("tower"))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                plain.settimeout(PATIENCE_S)
                with contextlib.suppress(OSError):
                    connection = self._context.wrap_socket(plain, server_side=True)
                    self._answer(connection)
                    self._idle.acquire(timeout=PATIENCE_S)
                    self._end(connection)
                    self._ended.release()

    def _answer(self, connection: ssl.SSLSocket) -> None:
        heard = b""
        while part := connection.recv(65536):
            heard += part
            head, _, body = heard.partition(b"\r\n\r\n")
            if len(body) >= int(head.lower().partition(b"content-length:")[2].split()[0]):
                reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b"
                self._answered += 1
                answer = ANSWER % self._answered
                connection.sendall(reply % (len(answer), answer))
                return

    def end_idle(self) -> None:
        """End the connection whose answer has been read."""
        self._idle.release()
        assert self._ended.acquire(timeout=PATIENCE_S)

    def close(self) -> None:
        self._idle.release()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(PATIENCE_S)


def in_good_order(connection: ssl.SSLSocket) -> None:
    """Send close_notify, as a tower does that stops."""
    connection.settimeout(0.1)
    with contextlib.suppress(OSError):
        connection.unwrap()
    connection.close()


def without_a_word(connection: ssl.SSLSocket) -> None:
    """End TCP alone, as a proxy does, or a kernel for a process that was killed."""
    socket.socket(fileno=connection.detach()).close()


def by_reset(connection: ssl.SSLSocket) -> None:
    """As a firewall that forgot the connection, or a machine that was started anew."""
    plain = socket.socket(fileno=connection.detach())
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    plain.close()


@pytest.fixture(params=[in_good_order, without_a_word, by_reset])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TlsServer]:
    server = TlsServer(tmp_path, request.param)
    yield server
    server.close()


@pytest.fixture
def address(server: TlsServer) -> TowerAddress:
    return TowerAddress(url=server.url, ca_file=server.ca_file)


def test_a_closed_connection_fails_with_the_end_of_the_file(
    server: TlsServer, address: TowerAddress
) -> None:
    """The caught errors are the real ones: OpenSSL's differ from those of a plain socket."""
    connection = TowerConnection(address, REPLY_LIMITS)
    connection.post("/x", b"{}")
    server.end_idle()
    with pytest.raises(_CLOSED_WHILE_IDLE):
        connection._exchange_once("POST", "/x", b"{}")
    connection.close()


def test_the_next_report_goes_through_without_a_warning_or_a_wait(
    server: TlsServer, address: TowerAddress, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    failures: list[None] = []
    replies: queue.Queue[ReportReply] = queue.Queue()
    sender = ReportSender(
        TowerConnection(address, REPLY_LIMITS),
        on_reply=replies.put,
        on_failure=lambda: failures.append(None),
    )
    sender.start()
    report = Report(version=PROTOCOL_VERSION, node="n1", agent_id="a", interval_s=1.0)
    for _ in range(4):
        sender.offer(report)
        assert replies.get(timeout=PATIENCE_S).version == 1
        server.end_idle()
    # Who waits before the next try has counted a failure and said why.
    assert failures == []
    assert caplog.records == []
