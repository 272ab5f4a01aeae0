"""Delivers reports (only the newest, once) and dumps (until the tower confirms them).

Each has a thread of its own, so that a tower that hangs never delays the check of a rank.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec

from agent.clocks import Moment, age_s, read_moment
from agent.delivery.dump_queue import (
    MAX_HELD_S,
    CountDumpLoss,
    DumpLoss,
    DumpQueue,
    WaitingDump,
    as_waiting,
)
from watchtower.access.tower_connection import ReplyLimits, TowerError
from watchtower.access.towers import Towers
from watchtower.wire import PROTOCOL_VERSION
from watchtower.wire.bounds import MAX_NAME, MAX_REPORT_BYTES
from watchtower.wire.dumps import DumpBatch, DumpReceipt
from watchtower.wire.orders import ReportReply
from watchtower.wire.report import RankVitals, Report

RETRY_SPREAD_S = 2.0
"""After a failed report the next one waits a random time up to this. So 2000 agents return at 1000
connections a second, the rate of their reports, and detection starts again within 2 s.
"""

OLD_DUMP_S = 60.0
BACKLOG_SPREAD_S = 10.0
"""After an old dump the next one waits a random time up to this. 2000 agents with dumps of an hour
must not displace the dumps of a current hang. A new dump does not wait.
"""

FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 15.0
"""Longest pause between two attempts to deliver a dump."""

log = logging.getLogger(__name__)

REPORT_PATH = "/ingest/v1/report"
NOT_YET = "not yet"

REPLIES = msgspec.json.Decoder(ReportReply)
_RECEIPTS = msgspec.json.Decoder(DumpReceipt)

REPLY_LIMITS = ReplyLimits(
    # A tower that needs longer counts as away.
    connect_s=5.0,
    reply_s=5.0,
    # Deadlines for a thousand ranks have 80 kB.
    max_bytes=1 << 20,
)

DUMPS_REPLY_LIMITS = replace(REPLY_LIMITS, reply_s=20.0)
"""The tower confirms dumps when they are on its disk. If all nodes of a large job send dumps at one
moment, that takes seconds, and a dump that is sent again would take as long once more."""

JITTER = random.Random()
"""A random generator of our own: other threads may depend on the state of the shared one."""


class ReportSender:
    """Sends the newest report. A report that the tower did not accept in time is dropped.

    Most replies are equal to the one before. These are not decoded, and not handed on.
    """

    def __init__(
        self,
        client: Towers,
        *,
        on_reply: Callable[[ReportReply], None],
        on_failure: Callable[[], None],
    ) -> None:
        self._client, self._on_reply, self._on_failure = client, on_reply, on_failure
        self._failing = False
        self._report: Report | None = None
        self._is_sending = False
        self._wake = threading.Condition()
        self._trouble = NOT_YET
        self._usual_answer = b""
        """The last reply, if an equal one need not be handled again: it has no orders."""

    def start(self) -> None:
        """Start the thread that sends."""
        threading.Thread(target=self._run, name="reports", daemon=True).start()

    @property
    def state(self) -> str:
        """Return a phrase: whether the tower accepts reports."""
        trouble = self._trouble
        if trouble == NOT_YET:
            return "no report sent yet"
        return (
            f"the tower does not accept reports: {trouble}"
            if trouble
            else "the tower accepts reports"
        )

    def offer(self, report: Report) -> None:
        """Set the report to send. It replaces one that still waits, because the ages in that one
        are old.
        """
        with self._wake:
            self._report = report
            self._wake.notify_all()

    def flush(self, timeout_s: float) -> None:
        """Wait until no report waits to be sent, at most `timeout_s` seconds."""
        with self._wake:
            self._wake.wait_for(lambda: self._report is None and not self._is_sending, timeout_s)

    def _run(self) -> None:
        while True:
            with self._wake:
                while self._report is None:
                    self._wake.wait()
            time.sleep(self.pause_s())
            self.send_newest()

    def pause_s(self) -> float:
        """Return the seconds before the next attempt. After a failure it is random, to spread the
        agents.
        """
        return JITTER.uniform(0, RETRY_SPREAD_S) if self._failing else 0.0

    def send_newest(self) -> None:
        """Send the waiting report, once."""
        with self._wake:
            report, self._report = self._report, None
            self._is_sending = report is not None
        if report is None:
            return
        try:
            self._send(report)
        finally:
            with self._wake:
                self._is_sending = False
                self._wake.notify_all()

    def _send(self, report: Report) -> None:
        self._failing = True
        try:
            answer = self._client.post(REPORT_PATH, encode_report(report))
            reply = None if answer == self._usual_answer else self._decode(answer)
        except TowerError as error:
            self._on_failure()
            self._log_change(error.reason)
            return
        except Exception:
            log.exception("report could not be sent")
            self._on_failure()
            return
        self._failing = False
        self._log_change("")
        if reply is not None:
            self._usual_answer = b"" if reply.orders or reply.series else answer
            self._on_reply(reply)

    def _decode(self, answer: bytes) -> ReportReply:
        try:
            reply = REPLIES.decode(answer)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TowerError(f"its reply is not understood and ignored: {error}") from error
        if reply.version != PROTOCOL_VERSION:
            raise TowerError(
                f"its reply has protocol version {reply.version} and is ignored: "
                f"this agent supports {PROTOCOL_VERSION}"
            )
        return reply

    def _log_change(self, trouble: str) -> None:
        """Log only when trouble begins and ends: a tower that is away for a night causes two
        lines.
        """
        if bool(trouble) == bool(self._trouble) and self._trouble != NOT_YET:
            return
        if trouble:
            log.warning("the tower does not accept reports: %s", trouble)
        else:
            log.info("the tower accepts reports")
        self._trouble = trouble


def encode_report(report: Report) -> bytes:
    """Return the report as JSON. If it is too long for a tower, the longest ranks are dropped.

    Only endless names and messages make a report that long.
    """
    body = msgspec.json.encode(report)
    if len(body) <= MAX_REPORT_BYTES:
        return body
    return msgspec.json.encode(replace(report, ranks=choose_ranks(report)))


def choose_ranks(report: Report) -> tuple[RankVitals, ...]:
    """Return the ranks of a report that a tower accepts: all, or as many of the shortest as fit."""
    left = MAX_REPORT_BYTES - len(msgspec.json.encode(replace(report, ranks=())))
    sizes = [len(msgspec.json.encode(rank)) + 1 for rank in report.ranks]
    kept = set()
    for place in sorted(range(len(sizes)), key=sizes.__getitem__):
        left -= sizes[place]
        if left < 0:
            break
        kept.add(place)
    return tuple(rank for place, rank in enumerate(report.ranks) if place in kept)


class DumpSender:
    """Sends dumps one by one, each again until the tower confirms it."""

    def __init__(
        self,
        client: Towers,
        queue: DumpQueue,
        count_loss: CountDumpLoss,
        read_moment: Callable[[], Moment] = read_moment,
    ) -> None:
        self._client, self._queue, self._count_loss = client, queue, count_loss
        self._read_moment = read_moment
        self._wake = threading.Event()
        self._failures = 0
        self._retry_after_s = 0.0

    def start(self) -> None:
        """Start the thread that sends."""
        threading.Thread(target=self._run, name="dumps", daemon=True).start()

    def deliver(self, batch: DumpBatch, taken: Moment) -> None:
        """Queue a batch."""
        self.put(as_waiting(batch, taken))

    def put(self, dump: WaitingDump) -> None:
        """Queue a batch of dumps or of series. For any thread."""
        self._queue.put(dump)
        self.ring()

    def ring(self) -> None:
        """Wake the thread that sends, because a dump waits."""
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.clear()
            self._wake.wait(self.send_first())

    def send_first(self) -> float | None:
        """Try to send one dump; return the seconds to wait before the next attempt, None if none
        waits.
        """
        dump = self._queue.first()
        if dump is None:
            return None
        if self._send(dump):
            self._queue.remove(dump.id)
            is_old = age_s(dump.taken, self._read_moment()) > OLD_DUMP_S
            return JITTER.uniform(0, BACKLOG_SPREAD_S) if is_old else 0.0
        self._queue.postpone(dump.id)
        return self._pause_s()

    def _send(self, dump: WaitingDump) -> bool:
        """Return whether the dump can be removed: delivered, too old, or refused for good."""
        held_s = age_s(dump.taken, self._read_moment())
        if held_s > MAX_HELD_S:
            log.warning("dump %s of %s is dropped: %.0f h old", dump.id, dump.job, held_s / 3600)
            self._count_loss(DumpLoss.TOO_OLD)
            return True
        try:
            message = dump.message(held_s)
        except Exception:  # the error concerns this dump only
            log.exception("dump %s of %s cannot be read and is dropped", dump.id, dump.job)
            self._count_loss(DumpLoss.DAMAGED)
            return True
        try:
            self._check(self._client.post(dump.path, message), dump.id)
        except TowerError as error:
            return self._failed(dump, error)
        if self._failures:
            log.info("dump %s was delivered, after %d failures", dump.id, self._failures)
        self._failures = 0
        return True

    def _check(self, answer: bytes, dump_id: str) -> None:
        try:
            receipt = _RECEIPTS.decode(answer)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TowerError(f"no receipt: {error}") from error
        if receipt.id != dump_id:
            raise TowerError(f"the receipt is for {receipt.id[:MAX_NAME]!r}")

    def _failed(self, dump: WaitingDump, error: TowerError) -> bool:
        if error.permanent:
            log.error("dump %s of %s is dropped: %s", dump.id, dump.job, error.reason)
            self._count_loss(DumpLoss.REFUSED)
            self._failures = 0
            return True
        self._failures += 1
        self._retry_after_s = error.retry_after_s
        if self._failures == 1:
            log.warning("dump %s waits for the tower: %s", dump.id, error.reason)
        return False

    def _pause_s(self) -> float:
        """Return the next pause, as the tower asks. Else it grows with each failure, and is random,
        to spread the agents.
        """
        if self._retry_after_s:
            return self._retry_after_s + JITTER.uniform(0, 1)
        longest = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(self._failures, 10))
        return JITTER.uniform(longest / 2, longest)
