"""An HTTP server that receives alerts and answers as a test wants."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DEADLINE_S = 60.0


@dataclass
class Receiver:
    """Answers with `status`, and records the requests that it accepted."""

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


@contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    """A receiver on a free port of the loopback address."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = receiver.status
            receiver.requests += 1
            time.sleep(receiver.delay_s)
            if status < 300:
                receiver.arrivals.append(time.time())
                receiver.keys.append(self.headers.get("Idempotency-Key", ""))
                receiver.accepted.append(json.loads(body))  # last: tests wait for it
            with contextlib.suppress(ConnectionError):  # the tower was killed
                self._reply(status)

        def _reply(self, status: int) -> None:
            time.sleep(receiver.reply_delay_s)
            self.send_response(status)
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(receiver.reply)))
            self.end_headers()
            self.wfile.write(receiver.reply)

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}/hook?secret=1"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
