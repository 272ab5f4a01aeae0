"""Replies of something that is no tower: they end in time, and are not cut in silence."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from watchtower.commands import client
from watchtower.commands.client import ClientError, TowerClient

Serve = Callable[[Callable[[BaseHTTPRequestHandler], None]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[ThreadingHTTPServer] = []

    def begin(answer: Callable[[BaseHTTPRequestHandler], None]) -> str:
        class Server(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with contextlib.suppress(OSError):  # the client has gone
                    answer(self)

            def log_message(self, *_: object) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Server))
        Thread(target=servers[-1].serve_forever, args=(0.05,), daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield begin
    for server in servers:
        server.shutdown()
        server.server_close()


def _drip(handler: BaseHTTPRequestHandler) -> None:
    for _ in range(600):
        handler.wfile.write(b" ")
        time.sleep(0.05)


def drip_body(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Length: 600\r\n\r\n")
    _drip(handler)


def drip_headers(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"HTTP/1.0 200 OK\r\nX-Long:")
    _drip(handler)


@pytest.mark.parametrize("answer", [drip_body, drip_headers])
def test_a_reply_that_drips_ends_at_its_deadline(serve, monkeypatch, answer):
    monkeypatch.setattr(client, "REPLY_S", 0.3)
    began = time.monotonic()
    with pytest.raises(ClientError, match="did not answer in time"):
        TowerClient(serve(answer)).jobs()
    assert time.monotonic() - began < 20


def test_a_reply_that_is_too_long_is_an_error_and_not_cut(serve, monkeypatch):
    monkeypatch.setattr(client, "MAX_BYTES", 100)

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n" + b'{"items": []}' + b" " * 100)

    with pytest.raises(ClientError, match="the reply is longer than 100 bytes"):
        TowerClient(serve(answer)).jobs()
