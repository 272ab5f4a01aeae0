"""Several towers on one PostgreSQL server, jobs that report to all of them, and a real webhook."""

from __future__ import annotations

import contextlib
import http.server
import json
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agent.clocks import read_moment
from agent.delivery.dump_queue import DumpLoss, DumpQueue
from agent.delivery.shipping import DUMPS_REPLY_LIMITS, REPLY_LIMITS, DumpSender, ReportSender
from tests.batches import EMPTY_BATCH
from tests.system.cluster.history import History
from tests.system.hung_jobs import FAST, REPORT_S, SmallJob, now
from tests.system.store.server import PostgresServer
from tests.waiting import wait_until
from watchtower.access.tower_address import TowerAddress
from watchtower.access.towers import TowerChoice, Towers
from watchtower.commands.client import ClientError, TowerClient
from watchtower.drills.environment import FORWARDER
from watchtower.drills.launching import free_port
from watchtower.service.interpreter import module_command
from watchtower.wire.report import ProcessState

DUMP_EVERY_S = 0.5
"""Seconds between two dumps of a hung job: some are under way whenever a tower is killed."""

PATIENCE_S = 90.0


@dataclass
class Message:
    """What the webhook received."""

    at: float
    job: str
    incident: str
    status: str
    key: str
    """Incident and version: a message that is sent again has the same one."""


class Webhook:
    """A receiver of alerts, as on-call has one."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        webhook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                for alert in body["alerts"]:
                    webhook.messages.append(
                        Message(
                            at=now(),
                            job=alert["labels"]["training_job"],
                            incident=alert["fingerprint"],
                            status=alert["status"],
                            key=self.headers["Idempotency-Key"],
                        )
                    )
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/"

    def fired(self, job: str) -> list[Message]:
        return [one for one in self.messages if one.job == job and one.status == "firing"]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class AckedTowers(Towers):
    """The connection of an agent for its dumps. It notes each receipt."""

    history: History

    def post(self, path: str, body: bytes) -> bytes:
        answer = super().post(path, body)
        self.history.dumps.add(json.loads(answer)["id"])
        return answer


class ClusterJob(SmallJob):
    """A job whose agent has the addresses of all towers. It delivers as the real agent does."""

    def deliver(self, urls: str, history: History) -> None:
        """Begin to report, and to send dumps while the job hangs."""
        address, choice = TowerAddress(url=urls), TowerChoice()
        self.lost, self._ends = list[DumpLoss](), threading.Event()
        self.reports = ReportSender(
            Towers(address, REPLY_LIMITS, choice), on_reply=lambda _: None, on_failure=lambda: None
        )
        for_dumps = AckedTowers(
            address, DUMPS_REPLY_LIMITS, choice, failover_s=DUMPS_REPLY_LIMITS.reply_s
        )
        for_dumps.history = history
        self.queue = DumpQueue(self.lost.append)
        self.dumps = DumpSender(for_dumps, self.queue, self.lost.append)
        choice.listeners += [for_dumps.follow, lambda _: self.dumps.ring()]
        self.reports.start()
        self.dumps.start()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ends.set()
        self._thread.join()

    @property
    def is_hung(self) -> bool:
        return self.ranks[1].state is ProcessState.STOPPED

    def _run(self) -> None:
        number, dumped_at = 0, 0.0
        while not self._ends.wait(REPORT_S):
            self.reports.offer(self.report())
            if self.is_hung and now() - dumped_at >= DUMP_EVERY_S:
                number, dumped_at = number + 1, now()
                batch = replace(
                    EMPTY_BATCH, id=f"{self.name}-{number}", node=self.node, job=self.name
                )
                self.dumps.deliver(batch, read_moment())


@dataclass
class TowerProcess:
    """One tower, on a port that it keeps."""

    name: str
    folder: Path
    command: list[str]
    port: int
    link: subprocess.Popen[bytes] | None = None
    """Forwards its connections to the database. Stopped, nothing gets through."""
    process: subprocess.Popen[str] | None = None
    stopped: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / f"{self.name}.log").read_text("utf-8", "replace")

    def start(self) -> None:
        with (self.folder / f"{self.name}.log").open("a") as log:
            self.process = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=self.folder
            )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip(), self.log

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.stopped = number == signal.SIGSTOP or (self.stopped and number != signal.SIGCONT)

    def end(self) -> None:
        """Stop it as systemd does."""
        self.kill(signal.SIGTERM)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.send(number)
        assert self.process is not None
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None

    def readyz(self) -> dict[str, Any]:
        """What it says of itself; empty without an answer."""
        if self.process is None or self.stopped:
            return {}
        try:
            with urllib.request.urlopen(f"{self.url}/readyz", timeout=5) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            with refused:
                return json.load(refused)
        except OSError:
            return {}


@dataclass
class Cluster:
    """All of it. `history` has what clients were promised."""

    folder: Path
    server: PostgresServer
    webhook: Webhook
    towers: list[TowerProcess]
    history: History = field(default_factory=History)
    jobs: list[ClusterJob] = field(default_factory=list)

    @property
    def urls(self) -> str:
        return ",".join(tower.url for tower in self.towers)

    def client(self) -> TowerClient:
        return TowerClient(self.urls, 10.0)

    def owner(self) -> TowerProcess | None:
        """The tower that is ready."""
        return next((tower for tower in self.towers if tower.readyz().get("ready")), None)

    def wait_for_owner(self) -> TowerProcess:
        found: list[TowerProcess] = []

        def find() -> bool:
            owner = self.owner()
            found.extend([owner] if owner else [])
            return bool(found)

        wait_until(find, "a tower owns the jobs", patience_s=PATIENCE_S)
        return found[0]

    def wait_for_another(self, owner: TowerProcess) -> None:
        """Wait until another tower owns the jobs, whatever the earlier owner believes."""
        others = [tower for tower in self.towers if tower is not owner]
        took_over = lambda: any(tower.readyz().get("ready") for tower in others)  # noqa: E731
        wait_until(took_over, "another tower owns the jobs", patience_s=PATIENCE_S)

    def wait_until_whole(self) -> None:
        """Wait until one tower owns the jobs, and all others are on standby."""

        def is_whole() -> bool:
            roles = sorted(str(tower.readyz().get("role")) for tower in self.towers)
            return roles == ["owner", *["standby"] * (len(self.towers) - 1)]

        wait_until(is_whole, "the cluster is whole", patience_s=PATIENCE_S)

    def add_job(self, name: str) -> ClusterJob:
        job = ClusterJob(name)
        job.deliver(self.urls, self.history)
        self.jobs.append(job)
        return job

    def wait_for_steps(self, *jobs: ClusterJob) -> None:
        """Wait until the owner knows how long a step of each job takes, and judges it."""
        names = {job.name for job in jobs}

        def step() -> bool:
            found = {
                one["job"] for one in self.ask(lambda c: c.jobs()) or () if (one["step"] or 0) >= 12
            }
            return names <= found

        wait_until(step, "every job steps", patience_s=PATIENCE_S)

    def ask(self, question: Callable[[TowerClient], Any]) -> Any:
        """Ask the owner; None without an answer."""
        try:
            return question(self.client())
        except ClientError:
            return None

    def incidents(self, job: str) -> list[dict[str, Any]]:
        return self.ask(lambda client: client.incidents(job)) or []

    def stored_dumps(self) -> set[str]:
        return {ident for (ident,) in self.server.execute("SELECT id FROM cluster.dumps")}


@contextlib.contextmanager
def running_cluster(folder: Path, number: int = 3) -> Iterator[Cluster]:
    """Start the server and the towers, the first one as the owner. All ends with the context."""
    folder.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        webhook = Webhook()
        stack.callback(webhook.close)
        server = PostgresServer()
        stack.callback(server.close)
        server.start()
        database = server.make_space("cluster")
        assert f":{server.port}/" in database
        secret = folder / "webhook"
        secret.touch(0o600)
        secret.write_text(webhook.url)
        config = folder / "tower.toml"
        config.write_text(f'{FAST}\n[alerts]\nwebhook_url_file = "{secret}"\n')
        towers = []
        for index in range(number):
            port, link_port = free_port(), free_port()
            words = [sys.executable, "-I", str(FORWARDER), str(link_port), "127.0.0.1"]
            link = subprocess.Popen([*words, str(server.port)], stdout=subprocess.PIPE)
            stack.callback(link.wait)
            stack.callback(link.kill)
            assert link.stdout is not None
            link.stdout.readline()
            stack.callback(link.stdout.close)
            near = database.replace(f":{server.port}/", f":{link_port}/")
            words = ["--port", str(port), "--data-dir", str(folder / f"data-{index}")]
            words += ["--config", str(config), "--database", near]
            command = module_command("watchtower", "serve", *words)
            towers.append(TowerProcess(f"tower-{index}", folder, command, port, link))
        cluster = Cluster(folder, server, webhook, towers)
        try:
            for tower in towers:
                tower.start()
                cluster.wait_for_owner()
            cluster.wait_until_whole()
            yield cluster
        finally:
            for job in cluster.jobs:
                job.end()
            for tower in towers:
                if tower.process is not None:
                    tower.kill()


def wait_s(seconds: float) -> None:
    """Let a fault last."""
    threading.Event().wait(seconds)
