"""One POST to servers that are slow, hostile or curious."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.alerts.receivers import Receiver, receiving
from watchtower.access.tower_connection import bounded_reply
from watchtower.alerts import destination
from watchtower.alerts.destination import MAX_REPLY, DeliveryError, post

SECRET = "T0K3N-of-the-hook"


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole reply must arrive within 0.5 s."""
    limited = bounded_reply(0.5, MAX_REPLY)
    monkeypatch.setattr(destination._Connection, "response_class", limited)


@contextmanager
def answering(pieces: Iterator[bytes], pause_s: float = 0.0) -> Iterator[str]:
    """A server that reads a request and sends pieces with a pause after each. Yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                try:
                    for piece in pieces:
                        connection.sendall(piece)
                        time.sleep(pause_s)
                except OSError:
                    return

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/{SECRET}"
        thread.join(10)


def forever(start: bytes, piece: bytes) -> Iterator[bytes]:
    yield start
    while True:
        yield piece


def fail(call: Callable[[], object]) -> DeliveryError:
    with pytest.raises(DeliveryError) as caught:
        call()
    assert SECRET not in str(caught.value)
    return caught.value


def test_the_reply_is_returned(receiver: Receiver):
    receiver.reply = b'{"ts": "1.2"}'
    assert post(receiver.url, b"{}", {}) == b'{"ts": "1.2"}'


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"", b"H"),
        (b"HTTP/1.1 200 OK\r\nX: ", b"y"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"z"),
        (b"HTTP/1.1 500 No\r\n\r\n", b"z"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nz\r\n"),
    ],
    ids=["status", "headers", "body", "refusal", "chunks"],
)
@pytest.mark.usefixtures("hurried")
def test_a_reply_that_drips_ends_after_the_limit(start: bytes, piece: bytes):
    began = time.monotonic()
    with answering(forever(start, piece), 0.05) as url:
        error = fail(lambda: post(url, b"{}", {}))
    assert time.monotonic() - began < 5
    assert not error.is_permanent


def test_a_huge_reply_is_not_read_to_its_end():
    sent = iter([b"HTTP/1.1 200 OK\r\n\r\n", *[b"x" * MAX_REPLY] * 300])
    with answering(sent) as url:
        assert post(url, b"{}", {}) == b"x" * MAX_REPLY
    assert sum(1 for _ in sent) > 0


def test_headers_without_an_end_are_an_error():
    with answering(forever(b"HTTP/1.1 200 OK\r\n", b"X: " + b"y" * 1000 + b"\r\n")) as url:
        fail(lambda: post(url, b"{}", {}))


def test_a_redirect_is_not_followed(receiver: Receiver):
    with receiving() as other:
        receiver.status = 307
        receiver.headers = {"Location": other.url}
        error = fail(lambda: post(receiver.url, b"{}", {"Authorization": SECRET}))
        assert error.is_permanent
        assert "redirects are not followed" in str(error)
        assert other.requests == 0


def test_a_secret_that_the_server_quotes_is_not_in_the_error(receiver: Receiver):
    receiver.status = 404
    base = receiver.url.partition("/hook")[0]
    for quoted in (SECRET, SECRET.replace("-", "&#45;")):
        receiver.reply = f"Cannot POST /hooks/{quoted}".encode()
        for url in (f"{base}/hooks/{SECRET}", f"{base}/x?key={SECRET}"):
            assert str(fail(lambda url=url: post(url, b"{}", {}))) == "127.0.0.1 answered HTTP 404"
        fail(lambda: post(f"{base}/x", b"{}", {"Authorization": f"Bearer {SECRET}"}))


def test_a_reply_that_is_not_http_is_not_quoted():
    with answering(iter([f"ECHO POST /{SECRET} HTTP/1.1\r\n\r\n".encode()])) as url:
        error = fail(lambda: post(url, b"{}", {}))
    assert str(error) == "127.0.0.1: the reply is not HTTP"


@pytest.mark.parametrize(
    "url",
    [
        f"http://name:{SECRET}@127.0.0.1/",
        f"http://127.0.0.1:1/{SECRET}",
        f"http://absent.invalid/{SECRET}",
        f"http://127.0.0.1/{SECRET} x",
        f"nothing://127.0.0.1/{SECRET}",
    ],
)
def test_no_error_contains_the_secret_of_the_url(url: str):
    fail(lambda: post(url, b"{}", {}))


@pytest.mark.parametrize(
    ("status", "after", "is_permanent", "expected"),
    [
        (429, "30", False, 30.0),
        (503, "5", False, 5.0),
        (503, "Wed, 21 Oct 2026 07:28:00 GMT", False, None),
        (500, "-1", False, None),
        (500, "9" * 400, False, None),
        (408, "", False, None),
        (400, "", True, None),
    ],
)
def test_a_refusal_says_whether_and_when_to_try_again(
    receiver: Receiver, status: int, after: str, is_permanent: bool, expected: float | None
):
    receiver.status, receiver.reply = status, b"not\nnow \x1b[31m"
    receiver.headers = {"Retry-After": after} if after else {}
    error = fail(lambda: post(receiver.url, b"{}", {}))
    assert (error.is_permanent, error.retry_after_s) == (is_permanent, expected)
    assert str(error) == f"127.0.0.1 answered HTTP {status}: not now  [31m"
