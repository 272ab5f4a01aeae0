"""Records what agents and tower of one release say to each other about a real hang.

    python tests/wire/record.py NUMBER

runs the release that Python imports (with PYTHONPATH: any checkout; it needs torch) and writes the
folder `recorded/NUMBER`: every message with its reply, the export of the incident, and the JSON
Schema of every message. `tests/tower/test_version_skew.py` then holds each later release to it.
Record a release when a message changes, under the next number. Run it in a checkout at
`/home/ann/watchtower`: stacks contain the path of the program.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import os
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec

from watchtower.commands.client import ClientError, TowerClient
from watchtower.drills.catalogue import find_drill
from watchtower.drills.children import Child, wait_for_url
from watchtower.drills.job import TrainingJob
from watchtower.drills.launching import MARK, Layout, node_mark
from watchtower.drills.settings import DrillSettings
from watchtower.drills.setup import Variables
from watchtower.service.interpreter import module_command
from watchtower.tower.export import Bundle
from watchtower.wire.dumps import DumpBatch, DumpReceipt
from watchtower.wire.orders import ReportReply
from watchtower.wire.report import Report
from watchtower.wire.series import SeriesBatch

RECORDED = Path(__file__).with_name("recorded")
MESSAGES = (Report, ReportReply, DumpBatch, DumpReceipt, SeriesBatch, Bundle)
JOB, RANKS, RANK, STEP = "recorded-job", 4, 2, 12
DEADLINE_S = 120.0
DETECTION = "[detection]\nsuspect_floor_s = 2\nhung_floor_s = 3\n"
SETTINGS = DrillSettings(step_s=0.2)


class Recorder(BaseHTTPRequestHandler):
    """Hands every request on to the tower and notes it with its reply."""

    protocol_version = "HTTP/1.1"
    tower = ""
    began_at = 0.0
    messages: list[dict[str, object]] = []  # noqa: RUF012

    def do_POST(self) -> None:
        self._hand_on(self.rfile.read(int(self.headers["Content-Length"])))

    def do_GET(self) -> None:
        self._hand_on(None)

    def log_message(self, *_: object) -> None:
        """Stay quiet."""

    def _hand_on(self, body: bytes | None) -> None:
        at_s = round(time.monotonic() - self.began_at, 3)
        connection = http.client.HTTPConnection(self.tower)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
        connection.request(self.command, self.path, body, headers)
        reply = connection.getresponse()
        answer = reply.read()
        if body is not None:
            text = {"body": json.loads(body), "reply": json.loads(answer)}
            self.messages.append({"at_s": at_s, "path": self.path, "status": reply.status, **text})
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.headers["Content-Type"])
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def main(name: str) -> None:
    target = RECORDED / name
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="record-") as text, contextlib.ExitStack() as stack:
        export, messages = _record(Path(text), stack)
    lines = "".join(json.dumps(message) + "\n" for message in messages)
    (target / "messages.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    (target / "export.json.gz").write_bytes(gzip.compress(export.encode(), mtime=0))
    schema = {"$defs": describe_messages()}
    (target / "schema.json").write_text(json.dumps(schema, indent=1, sort_keys=True) + "\n")
    print(f"{target}: {len(messages)} messages")


def describe_messages() -> dict[str, dict]:
    """Return the JSON Schema of every message of this release, by name, without its docstrings."""
    _, components = msgspec.json.schema_components(MESSAGES)
    for component in components.values():
        component.pop("description", None)
    return json.loads(json.dumps(components))


def _record(folder: Path, stack: contextlib.ExitStack) -> tuple[str, list[dict[str, object]]]:
    config = folder / "tower.toml"
    config.write_text(DETECTION)
    data = str(folder / "data")
    serve = ["serve", "--port", "0", "--data-dir", data, "--config", str(config)]
    tower = _start(stack, "tower", "watchtower", serve, folder)
    url = wait_for_url(tower, DEADLINE_S)
    Recorder.tower, Recorder.began_at = url.removeprefix("http://"), time.monotonic()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stack.callback(server.shutdown)
    for node in range(2):
        match = f"{MARK}={node_mark(folder, node)}"
        words = ["run", "--tower", f"http://127.0.0.1:{server.server_port}", "--port", "0"]
        words += ["--node", f"node-{node}", "--match", match, "--interval", "0.5"]
        words += ["--output-lines", "5"]
        _start(stack, f"agent-{node}", "agent", words, folder)
    job = TrainingJob(JOB, "torch", Layout(ranks=RANKS, nodes=2), folder)
    stack.callback(job.end)
    drill = find_drill("dataloader_sleep")
    plan = drill.plan(Variables(settings=SETTINGS, rank=RANK, ranks=RANKS, step=STEP))
    job.launch({"step_s": SETTINGS.step_s, "jitter": SETTINGS.jitter, **plan})
    export = _wait_for_incident(TowerClient(url, 5.0), job)
    _wait_for_series()
    return export, list(Recorder.messages)


def _start(
    stack: contextlib.ExitStack, name: str, module: str, words: list[str], folder: Path
) -> Child:
    child = Child(name, module_command(module, *words), folder)
    stack.callback(child.end)
    return child


def _wait_for_incident(client: TowerClient, job: TrainingJob) -> str:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        job.poll()
        with contextlib.suppress(ClientError):
            verdict = client.verdict(JOB)
            if verdict["status"] == "hung":
                return client.export(verdict["incident"])
        time.sleep(0.1)
    raise SystemExit(f"no incident within {DEADLINE_S:g} s\n{job.tail()}")


def _wait_for_series() -> None:
    """Wait until both nodes have sent their series."""
    deadline = time.monotonic() + DEADLINE_S
    while sum(each["path"] == "/ingest/v1/series" for each in Recorder.messages) < 2:
        if time.monotonic() > deadline:
            raise SystemExit(f"no series within {DEADLINE_S:g} s")
        time.sleep(0.1)


if __name__ == "__main__":
    os.environ.pop("WATCHTOWER_TOKEN_FILE", None)
    main(sys.argv[1])
