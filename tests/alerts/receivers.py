"""HTTP servers that receive alerts and answer as a test wants."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DEADLINE_S = 60.0

OK = (200, b"{}")


@contextmanager
def _serving(answer: Callable[[BaseHTTPRequestHandler, Any], None], port: int) -> Iterator[str]:
    """Serve on a port of the loopback address, 0 for a free one. Yields the URL of the server.

    `answer` gets each POST and its body.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with contextlib.suppress(ConnectionError):  # the tower was killed
                answer(self, body)

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def _send_head(
    handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], length: int | None
) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    if length is not None:
        handler.send_header("Content-Length", str(length))
    handler.end_headers()


@dataclass
class Receiver:
    """A webhook. Answers with `status`, and records the requests that it accepted."""

    status: int = 200
    delay_s: float = 0.0
    """Seconds before a request is accepted."""
    reply_delay_s: float = 0.0
    """Seconds from the acceptance of a request to the reply."""
    headers: dict[str, str] = field(default_factory=dict)
    reply: bytes = b"{}"
    accepted: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    """Headers `Idempotency-Key` of the accepted requests."""
    arrivals: list[float] = field(default_factory=list)
    """UNIX seconds of the accepted requests."""
    requests: int = 0
    url: str = ""

    @property
    def alerts(self) -> list[dict[str, Any]]:
        """The alerts of the accepted requests, in order."""
        return [alert for each in self.accepted for alert in each["alerts"]]

    def wait_for(self, count: int) -> list[dict[str, Any]]:
        """Wait until `count` requests were accepted."""
        until = time.monotonic() + DEADLINE_S
        while len(self.accepted) < count:
            assert time.monotonic() < until, f"{len(self.accepted)} of {count} alerts arrived"
            time.sleep(0.01)
        return self.accepted

    def wait_for_requests(self, count: int) -> None:
        """Wait until `count` requests came, accepted or not."""
        until = time.monotonic() + DEADLINE_S
        while self.requests < count:
            assert time.monotonic() < until, f"{self.requests} of {count} requests came"
            time.sleep(0.01)

    def answer(self, handler: BaseHTTPRequestHandler, body: Any) -> None:
        """Answer a request."""
        status = self.status
        self.requests += 1
        time.sleep(self.delay_s)
        if status < 300:
            self.arrivals.append(time.time())
            self.keys.append(handler.headers.get("Idempotency-Key", ""))
            self.accepted.append(body)  # last: tests wait for it
        time.sleep(self.reply_delay_s)
        _send_head(handler, status, self.headers, len(self.reply))
        handler.wfile.write(self.reply)


@contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    """A receiver on a free port of the loopback address."""
    receiver = Receiver()
    with _serving(receiver.answer, port) as url:
        receiver.url = f"{url}/hook?secret=1"
        yield receiver


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Api:
    """The API of a destination. Answers with the result of `answer`: a status and a body."""

    url: str = ""
    answer: Callable[[Request], tuple[int, bytes]] = lambda _: OK
    drips: bool = False
    """Send one byte of the body every 50 ms, without an end."""
    headers: dict[str, str] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)

    @property
    def bodies(self) -> list[Any]:
        """The body of each request."""
        return [request.body for request in self.requests]

    @property
    def paths(self) -> list[str]:
        """The path of each request."""
        return [request.path for request in self.requests]


@contextmanager
def serving() -> Iterator[Api]:
    """An API on a free port of the loopback address."""
    api, is_over = Api(), threading.Event()

    def answer(handler: BaseHTTPRequestHandler, body: Any) -> None:
        request = Request(handler.path, dict(handler.headers), body)
        api.requests.append(request)
        status, reply = api.answer(request)
        _send_head(handler, status, api.headers, None if api.drips else len(reply))
        while api.drips and not is_over.is_set():
            handler.wfile.write(b" ")
            time.sleep(0.05)
        handler.wfile.write(reply)

    with _serving(answer, 0) as url:
        api.url = url
        try:
            yield api
        finally:
            is_over.set()
