"""An HTTP server that answers as the API of a destination does, and fails as a test wants."""

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

OK = (200, b"{}")


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Api:
    """Answers with the result of `answer`: a status and a body."""

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

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            request = Request(self.path, dict(self.headers), body)
            api.requests.append(request)
            status, reply = api.answer(request)
            self.send_response(status)
            for name, value in api.headers.items():
                self.send_header(name, value)
            if not api.drips:
                self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                while api.drips and not is_over.is_set():
                    self.wfile.write(b" ")
                    time.sleep(0.05)
                self.wfile.write(reply)

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield api
    finally:
        is_over.set()
        server.shutdown()
        server.server_close()
