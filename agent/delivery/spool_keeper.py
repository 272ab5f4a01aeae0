"""Stores waiting dumps on disk, in a thread of its own. Only that thread uses the disk."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from agent.delivery.dump_queue import CountDumpLoss, DumpQueue
from agent.delivery.spool import Spool
from watchtower.wire.bounds import MAX_TEXT

SPOOL_RETRY_S = 30.0
"""Seconds until a folder that could not be used is tried again."""

SPOOL_IS_SLOW_S = 10.0
"""A write that takes this long is reported: the disk hangs, and dumps are in memory only."""

log = logging.getLogger(__name__)

MAX_REMOVED = 4096
"""Ids to unlink while the disk hangs. A dropped id is sent twice, which the tower ignores."""

FLUSH_POLL_S = 0.01


class SpoolKeeper:
    """Writes new dumps, unlinks removed ones, and queues the dumps that an earlier run left."""

    def __init__(self, directory: str, queue: DumpQueue, count_loss: CountDumpLoss) -> None:
        self._queue = queue
        self._spool = Spool(directory, count_loss, self._is_queued)
        self._ids: frozenset[str] = frozenset()
        self._written: set[str] = set()
        self._removed: deque[str] = deque(maxlen=MAX_REMOVED)
        self._wake = threading.Event()
        self._busy_since: float | None = None
        self._is_slow = False
        self._trouble = ""
        self._ring: Callable[[], None] = lambda: None
        queue.attach(self)

    def start(self, ring: Callable[[], None]) -> None:
        """Start the thread. `ring` is called when a dump from the disk is ready to be sent."""
        self._ring = ring
        self._wake.set()
        threading.Thread(target=self._run, name="spool", daemon=True).start()

    def ids(self) -> frozenset[str]:
        """Return the ids of the dumps on disk."""
        return self._ids

    def notice(self, removed: str = "") -> None:
        """Check the queue soon."""
        if removed:
            self._removed.append(removed)
        self._wake.set()

    def trouble(self) -> str:
        """Return why dumps are in memory only; empty if they are on disk."""
        since = self._busy_since
        if since is not None and (busy_s := time.monotonic() - since) > SPOOL_IS_SLOW_S:
            text = self._explain(f"the disk has not answered for {busy_s // 60 * 60 or 10:.0f} s")
            if not self._is_slow:
                log.warning("%s", text)
            self._is_slow = True
            return text
        return self._trouble

    def flush(self, wait_s: float) -> None:
        """Wait until all waiting dumps are on disk, at most this long."""
        self._wake.set()
        until = time.monotonic() + wait_s
        while time.monotonic() < until and (self._wake.is_set() or self._busy_since is not None):
            time.sleep(FLUSH_POLL_S)

    def _run(self) -> None:
        while True:
            self._wake.wait(SPOOL_RETRY_S)
            self._busy_since = time.monotonic()
            self._wake.clear()
            try:
                self._bring_up_to_date()
                self._log_change("")
            except OSError as error:
                self._give_up(error.strerror or str(error))
            except Exception as error:
                log.exception("the spool failed")
                self._give_up(f"{type(error).__name__}: {error}")
            finally:
                self._busy_since, self._is_slow = None, False

    def _bring_up_to_date(self) -> None:
        self._spool.open()
        self._unlink_removed()  # first: on a full disk this frees the space for waiting dumps
        waiting = [dump for dump in self._queue.all() if not dump.memory_only]
        self._written &= {dump.id for dump in waiting}
        for dump in waiting:
            # Only once: a dump that was dropped from a full spool must not push out another one.
            if dump.id not in self._written and dump.id not in self._spool.ids():
                self._spool.put(dump)
            self._written.add(dump.id)
        self._ids = self._spool.ids()
        if not self._queue.all() and (oldest := self._spool.first()) is not None:
            self._written.add(oldest.id)
            self._queue.put(oldest)
            self._ring()

    def _unlink_removed(self) -> None:
        while self._removed:
            dump_id = self._removed.popleft()
            try:
                self._spool.remove(dump_id)
            except OSError:
                # Keep the id until the file is gone. Otherwise it would be sent again and again.
                self._removed.appendleft(dump_id)
                raise
        self._ids = self._spool.ids()

    def _give_up(self, why: str) -> None:
        """Start again next time: the folder may be another one then."""
        self._spool.close()
        self._written.clear()
        self._log_change(self._explain(why))

    def _is_queued(self, dump_id: str) -> bool:
        return any(dump.id == dump_id for dump in self._queue.all())

    def _explain(self, why: str) -> str:
        text = f"dumps wait in memory only, and are lost when the agent ends: {self._spool.path}: "
        return (text + why)[:MAX_TEXT]

    def _log_change(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log.warning("%s", trouble)
        elif self._trouble and not trouble:
            log.info("dumps are stored in %s again", self._spool.path)
        self._trouble = trouble
