"""What a daemon needs, tower or agent: its state for systemd, a bounded log, rare collections.

The protocol of systemd is sd_notify(3): datagrams of VARIABLE=value lines to the socket in
NOTIFY_SOCKET. Errors, and a missing systemd, are ignored: monitoring must not depend on it.

Every log call in the code has its own limit: a burst of lines at once, then one line per interval,
with the number of lines that were left out. A record with `extra={"sharer": ...}` counts only for
that owner or job, so that the jobs of one owner do not hide lines about others. All sharers
together have a limit, too, because names of owners and jobs may be invented.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from time import monotonic

from watchtower.service.sharing import TokenBucket, TokenBuckets
from watchtower.writing.printable import printable

MAX_STATUS = 240
"""Characters of the status line in `systemctl status`. A terminal would cut off a longer line."""

RETRY_S = 1.0
"""Seconds until a retry if the socket is full. systemd reads its socket within milliseconds."""


class Notifier:
    """Sends the state of one daemon to systemd. Not thread-safe."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self._gap_s = _watchdog_s(environment) / 2
        self._feed_at = float("inf") if self._gap_s == float("inf") else float("-inf")
        self._is_ready = False
        self._status = ""

    def alive(self, now: float, status: str) -> float:
        """Report a successful check at `now` (seconds of any monotonic clock).

        Call it after every check. It sends only what is due: READY=1 the first time, WATCHDOG=1
        twice per WatchdogSec, and `status` if it has changed. Return the time of the next call at
        the latest.
        """
        is_due = now >= self._feed_at
        lines = [] if self._is_ready else ["READY=1"]
        if is_due:
            lines.append("WATCHDOG=1")
        if status != self._status:
            lines.append(f"STATUS={printable(status, MAX_STATUS)}")
        if lines and not self._send(lines):
            return now + min(RETRY_S, self._gap_s)
        self._is_ready, self._status = True, status
        if is_due:
            self._feed_at = now + self._gap_s
        return self._feed_at

    def stopping(self) -> None:
        """Report that the daemon is about to end."""
        self._send(["STOPPING=1", "STATUS=stopping"])

    def _send(self, lines: list[str]) -> bool:
        """Send without waiting. Return False if the lines must be sent again."""
        if not self._address:
            return True
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        try:
            with socket.socket(socket.AF_UNIX, kind) as sender:
                sender.sendto("\n".join(lines).encode(), self._address)
        except OSError:
            return False
        return True


def _address(name: str) -> str:
    """Return the kernel's address of the socket `name`; "" for none and for unsupported kinds."""
    if name.startswith("@"):
        return "\0" + name[1:]
    return name if name.startswith("/") else ""


def _watchdog_s(environment: Mapping[str, str]) -> float:
    """Return the watchdog's timeout in seconds; infinity without a watchdog."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return float("inf")
    text = environment.get("WATCHDOG_USEC", "")
    usable = text.isascii() and text.isdigit() and int(text) > 0
    return int(text) / 1e6 if usable else float("inf")


BURST = 30
"""Lines of one log call at once: enough for the ranks of a large node that are found together."""

REFILL_S = 10.0
"""Seconds per line of one log call after the burst: at most 360 lines an hour."""

CALL_BURST = 300
CALL_PER_S = 1.0
"""Lines of one log call for all sharers together, at once and then per second: the bursts of ten
owners, and at most 3600 lines an hour."""

MAX_LINE = 2000
"""Characters of one line. The names in it have their own limits."""

MAX_TRACEBACK_LINES = 100
"""Lines of one traceback, counted from its end."""

MAX_SHARERS = 4096
"""Pairs of log call and sharer that are counted separately."""

LogCall = tuple[str, int]
"""File and line of a log call. Unlike the text, untrusted input cannot change it."""


class LogLimit(logging.Filter):
    """A filter for a handler: it passes a record, or drops and counts it."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._sharers = TokenBuckets[tuple[LogCall, str]](BURST, 1 / REFILL_S, MAX_SHARERS)
        self._all_sharers: dict[LogCall, TokenBucket] = {}
        self._dropped: Counter[object] = Counter()
        """Dropped records by log call and sharer; by log call if the common limit dropped them."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written."""
        now, call = self._clock(), (record.pathname, record.lineno)
        key = call, str(getattr(record, "sharer", ""))
        own = self._sharers.use(key)
        common = self._all_sharers.setdefault(call, TokenBucket(CALL_BURST, CALL_PER_S))
        if own.left(now) < 1:
            self._dropped[key if len(self._dropped) < MAX_SHARERS else call] += 1
            return False
        if not common.take(now):
            self._dropped[call] += 1
            return False
        own.spend(now, 1)
        dropped = self._dropped.pop(key, 0) + self._dropped.pop(call, 0)
        more = f" (and {dropped} more like it)" if dropped else ""
        # Names in it must not break the line: the rest could imitate another line.
        record.msg, record.args = printable(record.getMessage(), MAX_LINE) + more, ()
        if record.exc_info:
            # The handler writes this text below the line instead of its own traceback.
            record.exc_text = _indent(logging.Formatter().formatException(record.exc_info))
        return True


def _indent(traceback: str) -> str:
    """Return a traceback with a mark on each line, so that none can imitate a log line."""
    lines = traceback.split("\n")[-MAX_TRACEBACK_LINES:]
    return "\n".join(f"  | {printable(line, MAX_LINE)}" for line in lines)


class JsonLines(logging.Formatter):
    """Writes each record as one object of JSON, with the values of `extra={"fields": ...}`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        at = datetime.fromtimestamp(record.created, timezone.utc)
        line = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["error"] = record.exc_text or self.formatException(record.exc_info)
        return json.dumps(line)


def log_to_stderr(*, as_json: bool) -> None:
    """Write the log with a limit, as lines of text or of JSON."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(JsonLines() if as_json else text)
    handler.addFilter(LogLimit())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


YOUNG_AFTER = 20_000
"""New objects, minus freed ones, before a small collection. Python's default is 700. With the
default, small collections took a tenth of the time of a tower with 2,000 reports a second."""

FULL_AFTER = 400
"""Collections of the middle generation before a full one. Python's default is 10. With 16,384 ranks
a full collection comes about every 15 minutes, so that an unknown leak of cycles stays bounded."""


def put_off_full_collections() -> None:
    """Make full collections rare, and exclude all objects that exist now (modules) from them."""
    _, middle, _ = gc.get_threshold()
    gc.set_threshold(YOUNG_AFTER, middle, FULL_AFTER)
    gc.collect()
    gc.freeze()
