"""Jobs of one file server that report to a real tower over HTTP, as their agents would."""

from __future__ import annotations

import http.client
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

import msgspec

from tests.file_server_jobs import INTERVAL_S, FileServerJobs
from tests.system.imagined_agents import get

DUMP_AFTER_S = 3.0
"""Seconds from the last step to the first round. Both are sent before the jobs are suspect: later
ones may come after an incident has opened on a busy machine, too late for its shared cause."""

ROUND_GAP_S = 1.0
TIMEOUT_S = 60.0
AGAIN_S = 0.5
SENDERS = 16
"""Connections that dumps are sent over. Each agent would have its own."""


@dataclass
class FileServerOutage:
    """Reports once a second; sends two rounds of dumps of every job when the jobs hang."""

    url: str
    jobs: FileServerJobs
    _stops: threading.Event = field(default_factory=threading.Event)
    _mine: threading.local = field(default_factory=threading.local)
    """The connection of each thread."""
    _opened: list[http.client.HTTPConnection] = field(default_factory=list)

    def __enter__(self) -> FileServerOutage:
        self._threads = [
            threading.Thread(target=self._report_on),
            threading.Thread(target=self._dump),
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stops.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        for connection in self._opened:
            connection.close()

    def listed(self) -> dict[str, dict]:
        """These jobs in the list of the tower, by name."""
        names = set(self.jobs.names)
        items = get(self.url, "/api/v1/jobs")["items"]
        return {item["job"]: item for item in items if item["job"] in names}

    def _report_on(self) -> None:
        while not self._stops.wait(0.0):
            began = time.monotonic()
            for report in self.jobs.reports():
                self._post("/ingest/v1/report", report)
            self._stops.wait(max(0.0, began + INTERVAL_S - time.monotonic()))

    def _dump(self) -> None:
        """Dump all ranks of all jobs in two rounds, as soon as their deadlines have passed."""
        while not self._stops.wait(0.05):
            if self.jobs.hung_at:
                break
        for number in (1, 2):
            due = self.jobs.hung_at + DUMP_AFTER_S + (number - 1) * ROUND_GAP_S
            self._stops.wait(max(0.0, due - time.monotonic()))
            with ThreadPoolExecutor(SENDERS) as senders:
                list(
                    senders.map(partial(self._post, "/ingest/v1/dumps"), self.jobs.batches(number))
                )

    def _post(self, path: str, message: object) -> None:
        if not hasattr(self._mine, "connection"):
            parts = urlsplit(self.url)
            host, port = parts.hostname or "", parts.port
            self._mine.connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
            self._opened.append(self._mine.connection)
        connection = self._mine.connection
        body = msgspec.json.encode(message)
        while not self._stops.is_set():  # as an agent: it is sent until it is taken
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            text = reply.read()
            if reply.status == 200:
                return
            assert reply.status == 503, text
            self._stops.wait(AGAIN_S)
