"""Prometheus, Alertmanager and a webhook receiver, with the configuration of deploy/prometheus."""

from __future__ import annotations

import contextlib
import http.server
import json
import shutil
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until
from watchtower.drills.launching import free_port

TOOLS = ("prometheus", "promtool", "prometheus-alertmanager", "amtool")
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None]

needs_prometheus = pytest.mark.skipif(
    bool(MISSING),
    reason=f"{', '.join(MISSING)} not installed: apt install prometheus prometheus-alertmanager",
)

DOCS = Path(__file__).parents[2] / "docs"
CONFIGURATION = Path(__file__).parents[2] / "deploy/prometheus"


def documented(name: str, addresses: Mapping[str, str] | None = None) -> str:
    """The file `name` that docs/alerts.md names; each of its addresses replaced by a real one."""
    text = (CONFIGURATION / name).read_text("utf-8")
    for shown, real in (addresses or {}).items():
        assert text.count(shown) == 1, f"{shown} in {name}"
        text = text.replace(shown, real)
    return text


def free_address() -> str:
    """An address of this machine on which nothing listens.

    The kernel gives its port to no outgoing connection, so a server can start there, and start
    again later.
    """
    return f"127.0.0.1:{free_port()}"


@contextlib.contextmanager
def running(folder: Path, address: str, *command: str) -> Iterator[None]:
    """Run a server that answers `/-/ready`; kill it at the end."""
    log_file = folder / f"{command[0]}.log"
    with (
        log_file.open("w") as log,
        subprocess.Popen(command, cwd=folder, stdout=log, stderr=log) as process,
    ):

        def is_ready() -> bool:
            assert process.poll() is None, log_file.read_text()
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://{address}/-/ready", timeout=5).close()
                return True
            return False

        try:
            wait_until(is_ready, f"{command[0]} is ready")
            yield
        finally:
            process.kill()


WATCHDOG = "/watchdog"


@dataclass
class Receiver:
    """The messages that Alertmanager sent, oldest first."""

    address: str
    notifications: list[dict[str, Any]] = field(default_factory=list)
    watchdogs: list[dict[str, Any]] = field(default_factory=list)
    """The messages that came to the dead man's switch."""

    @property
    def addresses(self) -> dict[str, str]:
        """This receiver in place of the documented ones. The switch gets a path of its own."""
        return {
            "on-call:8080/": f"{self.address}/",
            "dead-mans-switch:8080/": f"{self.address}{WATCHDOG}",
        }

    @property
    def alerts(self) -> list[dict[str, Any]]:
        """The alerts in all notifications."""
        return [alert for each in self.notifications for alert in each["alerts"]]

    def sent(self, status: str, job: str) -> list[dict[str, Any]]:
        """Alerts of one job in a notification of this status."""
        return [
            one
            for one in self.alerts
            if one["status"] == status and one["labels"].get("training_job") == job
        ]


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    """Receive Alertmanager's webhooks."""
    receiver = Receiver("")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received = receiver.watchdogs if self.path == WATCHDOG else receiver.notifications
            received.append(json.loads(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.address = f"127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()


@dataclass(frozen=True)
class Prometheus:
    address: str

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}", timeout=5) as answer:
            return json.load(answer)["data"]

    def firing(self) -> dict[str, dict[str, Any]]:
        """Alerts about jobs that fire, by job."""
        return {
            alert["labels"]["training_job"]: alert
            for alert in self.ask("alerts")["alerts"]
            if alert["state"] == "firing" and "training_job" in alert["labels"]
        }

    def is_up(self) -> bool:
        """Whether the last scrape of the tower worked."""
        query = urllib.parse.quote('up{job="watchtower"}')
        found = self.ask(f"query?query={query}")["result"]
        return [one["value"][1] for one in found] == ["1"]


@contextlib.contextmanager
def watching(
    folder: Path, tower: str, receiver: Receiver, extra: str = "", alertmanager: str = ""
) -> Iterator[Prometheus]:
    """Prometheus and Alertmanager as documented, between a tower and a receiver.

    `extra` has further lines for the scrape configuration. `alertmanager` is the address of
    Alertmanager, if others must know it.
    """
    prometheus, alertmanager = free_address(), alertmanager or free_address()
    files = {
        "prometheus.yml": {"tower:19660": tower, "alertmanager:9093": alertmanager},
        "watchtower.rules.yml": {},
        "alertmanager.yml": receiver.addresses,
    }
    for name, addresses in files.items():
        text = documented(name, addresses)
        if name == "prometheus.yml":
            text = text.replace("    static_configs:", f"{extra}    static_configs:", 1)
        (folder / name).write_text(text)
    scraping = (
        "prometheus",
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=prometheus",
        f"--web.listen-address={prometheus}",
    )
    with alerting(folder, alertmanager), running(folder, prometheus, *scraping):
        yield Prometheus(prometheus)


@contextlib.contextmanager
def alerting(folder: Path, address: str) -> Iterator[None]:
    """Alertmanager with the `alertmanager.yml` of a folder."""
    command = (
        "prometheus-alertmanager",
        "--config.file=alertmanager.yml",
        "--storage.path=alertmanager",
        f"--web.listen-address={address}",
        "--cluster.listen-address=",
    )
    with running(folder, address, *command):
        yield
