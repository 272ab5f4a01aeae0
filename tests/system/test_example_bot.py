"""The example of a bot posts an incident of a real tower once."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.system.hung_jobs import FAST, SmallJob, reporting
from tests.towers import running_tower
from tests.waiting import wait_until
from watchtower.commands.client import TowerClient

BOT = Path(__file__).parents[2] / "examples/incident_bot.py"


@pytest.fixture
def webhook() -> Iterator[tuple[str, queue.Queue[dict]]]:
    """Return the address of a webhook that refuses the first message, and what it accepted."""
    accepted: queue.Queue[dict] = queue.Queue()
    refused = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if refused:
                accepted.put(body)
            self.send_response(200 if refused else 503)
            refused.append(body)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook", accepted
    server.shutdown()
    server.server_close()


def test_the_bot_posts_a_new_incident_once_although_the_webhook_was_away(tmp_path, webhook):
    url, accepted = webhook
    (tmp_path / "tower.toml").write_text(FAST)
    job = SmallJob("llama")
    with running_tower(tmp_path, "--config", str(tmp_path / "tower.toml")) as tower:
        environment = os.environ | {"WATCHTOWER_URL": tower.url, "EVERY_S": "0.2"}
        command = [sys.executable, str(BOT), url]
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as bot:
            try:
                client = TowerClient(tower.url)
                with reporting(tower.url, job):
                    wait_until(lambda: any(each["step"] for each in client.jobs()), "a step")
                    job.stop()
                    message = accepted.get(timeout=60)
                    (incident,) = client.incidents()
                assert message["text"].startswith("**llama: hung, process_stopped")
                assert incident["id"] in message["text"]
                with pytest.raises(queue.Empty):
                    accepted.get(timeout=1)
                assert bot.poll() is None
            finally:
                bot.kill()
