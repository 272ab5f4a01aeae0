"""Delivers reports (only the newest, never again) and dumps (until the tower has them).

Threads of their own, so that a tower that hangs never delays a look at a rank.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import msgspec

from agent.config import MAX_BACKOFF_S, MAX_WAITING_BATCHES
from agent.tower_client import TowerClient, TowerError
from watchtower.wire import PROTOCOL_VERSION
from watchtower.wire.dumps import DumpBatch, DumpReceipt
from watchtower.wire.orders import ReportReply
from watchtower.wire.report import Report

log = logging.getLogger(__name__)

REPORT_PATH = "/ingest/v1/report"
DUMPS_PATH = "/ingest/v1/dumps"
FIRST_BACKOFF_S = 0.5


class DumpQueue(Protocol):
    """Where dumps wait for the tower: memory now, a spool on disk later."""

    def put(self, batch: DumpBatch, taken_at: float) -> None:
        """Keep a batch taken at a monotonic time."""

    def first(self) -> tuple[DumpBatch, float] | None:
        """Return the oldest batch and when it was taken, without removing it."""

    def remove(self, batch_id: str) -> None:
        """Let go of a batch: it was delivered, or never will be."""


class MemoryQueue:
    """Dumps in memory; beyond the bound the oldest go, and that is said."""

    def __init__(self) -> None:
        self._batches: deque[tuple[DumpBatch, float]] = deque()
        self._lock = threading.Lock()

    def put(self, batch: DumpBatch, taken_at: float) -> None:
        """Keep a batch."""
        with self._lock:
            self._batches.append((batch, taken_at))
            while len(self._batches) > MAX_WAITING_BATCHES:
                lost, _ = self._batches.popleft()
                log.warning("dump %s of job %s is dropped: too many wait", lost.id, lost.job)

    def first(self) -> tuple[DumpBatch, float] | None:
        """Return the oldest batch."""
        with self._lock:
            return self._batches[0] if self._batches else None

    def remove(self, batch_id: str) -> None:
        """Let go of a batch."""
        with self._lock:
            self._batches = deque(each for each in self._batches if each[0].id != batch_id)


class ReportSender:
    """Sends the newest report; one that the tower did not take in time is dropped."""

    def __init__(
        self,
        client: TowerClient,
        *,
        on_reply: Callable[[ReportReply], None],
        on_failure: Callable[[], None],
    ) -> None:
        self._client, self._on_reply, self._on_failure = client, on_reply, on_failure
        self._report: Report | None = None
        self._wake = threading.Condition()
        self._said = "not yet"
        self._decoder = msgspec.json.Decoder(ReportReply)

    def start(self) -> None:
        """Begin sending."""
        threading.Thread(target=self._run, name="reports", daemon=True).start()

    def offer(self, report: Report) -> None:
        """Hand over a report; one that still waits is replaced, its ages are old."""
        with self._wake:
            self._report = report
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                while self._report is None:
                    self._wake.wait()
                report, self._report = self._report, None
            try:
                self._send(report)
            except Exception:
                log.exception("report could not be sent")
                self._on_failure()

    def _send(self, report: Report) -> None:
        try:
            reply = self._decode(self._client.post(REPORT_PATH, msgspec.json.encode(report)))
        except TowerError as error:
            self._on_failure()
            self._say(error.reason)
            return
        self._say("")
        self._on_reply(reply)

    def _decode(self, answer: bytes) -> ReportReply:
        try:
            reply = self._decoder.decode(answer)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TowerError(f"its reply is not understood and ignored: {error}") from error
        if reply.version != PROTOCOL_VERSION:
            raise TowerError(
                f"its reply has protocol version {reply.version} and is ignored: "
                f"this agent speaks {PROTOCOL_VERSION}"
            )
        return reply

    def _say(self, trouble: str) -> None:
        """Log a change only: a tower that is away for a night is two lines."""
        if trouble == self._said:
            return
        if trouble:
            log.warning("the tower does not take reports: %s", trouble)
        elif self._said:
            log.info("the tower takes reports")
        self._said = trouble


class DumpSender:
    """Sends dumps one by one, each again until the tower says that it has it."""

    def __init__(self, client: TowerClient, queue: DumpQueue) -> None:
        self._client, self._queue = client, queue
        self._wake = threading.Event()
        self._failures = 0
        self._decoder = msgspec.json.Decoder(DumpReceipt)

    def start(self) -> None:
        """Begin sending."""
        threading.Thread(target=self._run, name="dumps", daemon=True).start()

    def deliver(self, batch: DumpBatch, taken_at: float) -> None:
        """Queue a batch."""
        self._queue.put(batch, taken_at)
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.clear()
            waiting = self._queue.first()
            if waiting is None:
                self._wake.wait()
                continue
            try:
                delivered = self._send(*waiting)
            except Exception:
                log.exception("dump %s cannot be sent and is dropped", waiting[0].id)
                delivered = True
            if delivered:
                self._queue.remove(waiting[0].id)
            else:
                self._wake.wait(self._pause_s())

    def _send(self, batch: DumpBatch, taken_at: float) -> bool:
        """Return whether the batch is done with: delivered, or refused for good."""
        message = replace(batch, held_s=max(0.0, time.monotonic() - taken_at))
        try:
            answer = self._client.post(DUMPS_PATH, msgspec.json.encode(message))
            self._check(answer, batch.id)
        except TowerError as error:
            return self._failed(batch, error)
        if self._failures:
            log.info("dump %s was delivered after %d tries", batch.id, self._failures + 1)
        self._failures = 0
        return True

    def _check(self, answer: bytes, batch_id: str) -> None:
        try:
            receipt = self._decoder.decode(answer)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TowerError(f"no receipt: {error}") from error
        if receipt.id != batch_id:
            raise TowerError(f"the receipt is for {receipt.id!r}")

    def _failed(self, batch: DumpBatch, error: TowerError) -> bool:
        if error.permanent:
            log.error("dump %s of %s is dropped: %s", batch.id, batch.job, error.reason)
            self._failures = 0
            return True
        self._failures += 1
        if self._failures == 1:
            log.warning("dump %s waits for the tower: %s", batch.id, error.reason)
        return False

    def _pause_s(self) -> float:
        """Grow the pause, and spread it: a thousand agents must not come back at one moment."""
        longest = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(self._failures, 10))
        return random.uniform(longest / 2, longest)
