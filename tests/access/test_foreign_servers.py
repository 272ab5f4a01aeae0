"""Servers that are not a tower: none holds a thread for long, none refuses a message for good."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from watchtower.access.tokens import ClientToken, find_client_token
from watchtower.access.tower_address import (
    AddressError,
    TowerAddress,
    check_token_is_safe,
)
from watchtower.access.tower_connection import (
    NoReplyError,
    ReplyLimits,
    TowerConnection,
    TowerError,
    UnreachableError,
)
from watchtower.commands import client
from watchtower.commands.client import ClientError, TowerClient


class ForeignServer:
    """A server that is no tower: it says what it is told to, and then goes on with `more`."""

    def __init__(self, head: bytes, more: bytes = b"", every_s: float = 0.0) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._head, self._more, self._every_s = head, more, every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        with connection:
            try:
                _read_request(connection)
                connection.sendall(self._head)
                while self._more and not self._over.wait(self._every_s):
                    connection.sendall(self._more)
            except OSError:
                pass

    def close(self) -> None:
        self._over.set()
        self._listener.close()
        self._thread.join(30)


def _read_request(connection: socket.socket) -> None:
    """Read all of it: who closes with something unread resets the connection."""
    request = b""
    while BODY not in request and (piece := connection.recv(65536)):
        request += piece
        if request.startswith(b"GET ") and request.endswith(b"\r\n\r\n"):
            return


BODY = b"{}"
OK = b"HTTP/1.1 200 OK\r\n"
PLAIN = b"Content-Type: text/html\r\nConnection: close\r\n"


@pytest.mark.parametrize(
    ("head", "more", "every_s", "text"),
    [
        (OK + b"Content-Length: 9000000000\r\n\r\n", b"x" * 65536, 0.0, "longer than"),
        (
            OK + b"Transfer-Encoding: chunked\r\n\r\n",
            b"1000\r\n" + b"x" * 4096 + b"\r\n",
            0.0,
            "longer than",
        ),
        (OK + b"Content-Length: 100\r\n\r\n", b"x", 0.01, "no answer within"),
        (OK + b"Content-Length: 100\r\n\r\n{}", b"", 0.0, "in the middle of its reply"),
        (OK + b"X: ", b"y" * 65536, 0.0, "too long"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, 0.0, "too long"),
        (
            OK + b"Transfer-Encoding: chunked\r\n\r\n",
            b"1;" + b"x" * 60_000 + b"\r\ny\r\n",
            0.0,
            "too long",
        ),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n", 0.01, "no answer within"),
        (OK, b"X: y\r\n", 0.02, "no answer within"),
        (OK + b"X-Endless: ", b"y", 0.01, "no answer within"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.01, "no answer within"),
        (b"", b"\0", 0.01, "no answer within"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", b"", 0.0, "without an HTTP reply"),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\n" + PLAIN + b"\r\n", b"", 0.0, "a redirect"),
        (b"HTTP/1.1 404 Not Found\r\n" + PLAIN + b"\r\n<html>", b"", 0.0, "HTTP 404"),
        (b"HTTP/1.1 422 No\r\n" + PLAIN + b"\r\n<html>", b"", 0.0, "HTTP 422"),
        (b"HTTP/1.1 \xff\r\n\r\n", b"", 0.0, ""),
    ],
)
def test_what_is_no_tower_holds_nobody_up_and_refuses_nothing(
    head: bytes, more: bytes, every_s: float, text: str
) -> None:
    # Only an answer that never ends may be waited for in vain: the others have time to come.
    limits = limits_of(0.3 if text == "no answer within" else 30.0)
    foreign_server = ForeignServer(head, more, every_s)
    connection = TowerConnection(TowerAddress(url=foreign_server.url), limits)
    began = time.monotonic()
    try:
        with pytest.raises(TowerError) as raised:
            connection.post("/ingest/v1/dumps", BODY)
    finally:
        connection.close()
        foreign_server.close()
    assert text in raised.value.reason
    assert isinstance(raised.value, NoReplyError) == (text == "no answer within")
    assert not raised.value.permanent
    assert raised.value.reason.isprintable()
    assert time.monotonic() - began < 25


@pytest.fixture
def foreign(request: pytest.FixtureRequest) -> Iterator[ForeignServer]:
    server = ForeignServer(*request.param)
    yield server
    server.close()


SLOW_BODY = (OK + b"Content-Length: 600\r\n\r\n", b" ", 0.05)
SLOW_HEAD = (OK + b"X-Long:", b" ", 0.05)
LONG = (OK + PLAIN + b"\r\n" + b'{"items": []}' + b" " * 100,)


@pytest.mark.parametrize("foreign", [SLOW_BODY, SLOW_HEAD], indirect=True)
def test_a_command_does_not_wait_for_a_reply_that_drips(foreign, monkeypatch) -> None:
    monkeypatch.setattr(client, "REPLY_S", 0.3)
    began = time.monotonic()
    with pytest.raises(ClientError, match="did not answer in time"):
        TowerClient(foreign.url).jobs()
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("foreign", [LONG], indirect=True)
def test_a_reply_that_is_too_long_for_a_command_is_an_error_and_not_cut(
    foreign, monkeypatch
) -> None:
    monkeypatch.setattr(client, "MAX_BYTES", 100)
    with pytest.raises(ClientError, match="the reply is longer than 100 bytes"):
        TowerClient(foreign.url).jobs()


def limits_of(seconds: float) -> ReplyLimits:
    return ReplyLimits(connect_s=seconds, reply_s=seconds, max_bytes=1 << 16)


@pytest.mark.parametrize("host", ["127.0.0.1:9", "no-such-host.invalid:1"])
def test_where_nothing_listens_is_told_from_what_answers_wrong(host: str) -> None:
    connection = TowerConnection(TowerAddress(url=f"http://{host}"), limits_of(1.0))
    with pytest.raises(UnreachableError) as raised:
        connection.get("/api/v1/jobs")
    assert raised.value.reason
    assert "Error" not in raised.value.reason


def test_a_token_goes_over_tls_or_stays_on_this_machine() -> None:
    token = find_client_token("", {"WATCHTOWER_TOKEN": "s3cret-s3cret-s3cret"})
    with pytest.raises(AddressError, match="https://"):
        check_token_is_safe("http://tower:19660", token, insecure=False)
    for url in ("https://tower", "http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1"):
        check_token_is_safe(url, token, insecure=False)
    check_token_is_safe("http://tower:19660", token, insecure=True)
    check_token_is_safe("http://tower:19660", ClientToken(), insecure=False)
