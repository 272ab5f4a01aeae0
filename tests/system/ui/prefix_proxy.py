"""A proxy that serves a tower below a path, as nginx with `location /watch/` does."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PREFIX = "/watch"
HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive", "content-length", "host"}


@dataclass
class PrefixProxy:
    """A proxy without a tower yet."""

    url: str
    """Of the tower, as people use it."""
    upstream: tuple[str, int] = ("127.0.0.1", 0)


@contextmanager
def prefix_proxy() -> Iterator[PrefixProxy]:
    """Run a proxy on a free port. Set its `upstream` before the first request."""
    proxy = PrefixProxy("")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._forward()

        def do_POST(self) -> None:
            self._forward()

        def log_message(self, *_: object) -> None:
            pass

        def _forward(self) -> None:
            if not self.path.startswith(f"{PREFIX}/"):
                self.send_error(404)
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP_BY_HOP}
            connection = http.client.HTTPConnection(*proxy.upstream, timeout=60)
            connection.request(self.command, self.path.removeprefix(PREFIX), body, headers)
            reply = connection.getresponse()
            content = reply.read()
            connection.close()
            self.send_response(reply.status)
            for name, value in reply.getheaders():
                if name.lower() not in HOP_BY_HOP:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        proxy.url = f"http://127.0.0.1:{server.server_port}{PREFIX}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()
