"""A slow HTTP server: what it sends it sends in small pieces, what it is sent it throws away.

Run by path: python -I file_server.py. GET /?seconds=N sends for so long.
"""

from __future__ import annotations

import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

CHUNK = b"\x5a" * 32768
CHUNK_S = 0.1


class Handler(BaseHTTPRequestHandler):
    """One request."""

    def do_GET(self) -> None:
        """Send a piece, wait, send the next."""
        query = parse_qs(urlsplit(self.path).query)
        until = time.monotonic() + float(query["seconds"][0])
        self.send_response(200)
        self.end_headers()
        while time.monotonic() < until:
            self.wfile.write(CHUNK)
            time.sleep(CHUNK_S)

    def do_PUT(self) -> None:
        """Read it all, piece by piece (chunked transfer coding)."""
        while size := int(self.rfile.readline(), 16):
            self.rfile.read(size + 2)
        self.rfile.readline()
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *words: object) -> None:
        """Say nothing."""


def main() -> None:
    """Serve until ended; nothing has to be let go."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        url = f"http://127.0.0.1:{server.server_port}/shards"
        print("ready", json.dumps({"url": url}), flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
