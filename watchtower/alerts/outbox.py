"""The alerts that one destination must still receive: order, retries and rate. Pure.

For each incident the outbox contains the current alert and the version that was delivered. So a
destination that was down receives the current state, not every state in between. `now` is an
argument: seconds of a monotonic clock. A write to the store that fails is repeated with the next
check.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache, partial

import msgspec

from watchtower.alerts.alert import Alert
from watchtower.service.calls import timeout
from watchtower.service.sharing import FairUse, TokenBucket
from watchtower.store.protocol import Store
from watchtower.store.values import AlertRow
from watchtower.tower.clock import Clock

log = logging.getLogger("watchtower.alerts")

FIRST_RETRY_S, LAST_RETRY_S = 1.0, 300.0
"""Seconds to the first retry. Each further wait is twice as long, up to the second number."""

MAX_ALERTS = 8192
"""Alerts of one destination: twice the number of live jobs. Above it, the sharer with the most
alerts loses one."""

END_GIVEN_UP_S = 86_400.0
"""Seconds after which the end of an alert that could not be delivered is given up. An open alert is
retried until its incident ends."""

BURST, PER_S = 30.0, 1.0
"""Requests at once and per second. Slack accepts about one message per second and channel."""


@dataclass(slots=True)
class Entry:
    """The alert of one incident."""

    alert: Alert
    delivered: int = 0
    """Version of the last delivery; 0 before the first one."""
    receipt: str = ""
    due_at: float = 0.0
    """When to send it; infinite if there is nothing to send."""
    waiting_since: float | None = None
    """Since when a version waits for its delivery; None if there is none."""
    attempts: int = 0
    """Failed attempts since the last delivery."""
    is_begun: bool = False
    """Whether an attempt has begun whose result is not known."""
    is_held: bool = False
    """Whether nothing is sent, because the incident is silenced."""

    @property
    def is_due_ever(self) -> bool:
        """Whether it will be sent at `due_at`: the end of an alert is not held."""
        return self.alert.is_over or not self.is_held

    @property
    def is_delivered(self) -> bool:
        """Whether the destination has received the current version."""
        return self.delivered == self.alert.version

    @property
    def is_finished(self) -> bool:
        """Whether the destination has received the end of the alert."""
        return self.alert.is_over and self.is_delivered


@dataclass(slots=True)
class Outbox:
    """The alerts of one destination."""

    repeat_s: float | None = None
    """Seconds after which an open alert is sent again; None: never."""
    most: int = 1
    """Alerts that one request may contain."""
    entries: dict[str, Entry] = field(default_factory=dict)
    """By incident."""
    deliveries: int = 0
    failures: int = 0
    _use: FairUse = field(default_factory=FairUse)
    """Seconds of the destination that each sharer has used: `1 / PER_S` for a request."""
    _splits: int = 0
    """How often the number of alerts of a request was halved, because one of them was refused."""
    _paused_until: float = float("-inf")
    """The destination asked for no requests until then."""
    _bucket: TokenBucket = field(default_factory=lambda: TokenBucket(BURST, PER_S))

    def put(self, alert: Alert, now: float, gather_s: float = 0.0) -> Alert | None:
        """Set the current alert of its incident. Return the alert that is dropped for it.

        A change is sent after `gather_s` seconds, together with those that follow within that time.
        If there are too many alerts, that is this one or one of the sharer with the most alerts.
        """
        entry, dropped = self.entries.get(alert.incident), None
        if entry is None:
            if len(self.entries) >= MAX_ALERTS:
                dropped = self._find_dispensable(alert)
                if self.entries.pop(dropped.incident, None) is None:
                    return dropped
            entry = self.entries[alert.incident] = Entry(alert, due_at=now)
        entry.alert = alert
        if not entry.is_delivered and entry.waiting_since is None:
            entry.waiting_since, entry.due_at, entry.attempts = now, now + gather_s, 0
        return dropped

    def _find_dispensable(self, alert: Alert) -> Alert:
        """Return the latest alert of the sharer with the most ones that no delivery has begun, or
        the new one."""
        counts = Counter(entry.alert.sharer for entry in self.entries.values())
        most = max(counts, key=lambda sharer: counts[sharer])
        if counts[alert.sharer] + 1 < counts[most]:
            for entry in reversed(self.entries.values()):
                is_of_one = {one.sharer for one in entry.alert.each} == {most}
                if is_of_one and not entry.delivered and not entry.is_begun:
                    return entry.alert
        return alert

    def restore(
        self, alert: Alert, delivered: int, receipt: str, waiting_s: float, now: float
    ) -> None:
        """Set an alert of the tower's last run. `waiting_s`: since its last change."""
        entry = Entry(alert, delivered=delivered, receipt=receipt, due_at=now)
        if not entry.is_delivered:
            entry.waiting_since, entry.is_begun = now - waiting_s, True
        elif self.repeat_s is None:
            entry.due_at = float("inf")
        self.entries[alert.incident] = entry

    def find_next(self, now: float) -> Entry | None:
        """Return the entry to send now: news before repeats. The sharers take turns, the oldest
        alert first."""
        if now < self._paused_until or self._bucket.left(now) < 1:
            return None
        return min(self._due(now), key=self._rank_at(now), default=None)

    def find_more(self, now: float) -> list[Entry]:
        """Return further entries for the same request, in the same order."""
        return heapq.nsmallest(
            (self.most >> self._splits) - 1, self._due(now), key=self._rank_at(now)
        )

    def _due(self, now: float) -> Iterator[Entry]:
        return (each for each in self.entries.values() if each.is_due_ever and each.due_at <= now)

    def _rank_at(
        self, now: float
    ) -> Callable[[Entry], tuple[bool, bool, tuple[float, float], float]]:
        """Return the order of entries: news first, open alerts before ends, then the sharer with
        the least use.

        A message about incidents of several sharers uses the turn of the sharer with the least use,
        so that a flood of one does not delay it for another.
        """
        use = cache(lambda sharer, founder: self._use.of(sharer, founder, now))
        return lambda entry: (
            entry.is_delivered,
            entry.alert.is_over,
            min(use(one.sharer, one.founder) for one in entry.alert.each),
            entry.due_at,
        )

    def wait_s(self, now: float) -> float:
        """Return the seconds until `find_next` may have a result; infinite if nothing waits."""
        sendable = (entry.due_at for entry in self.entries.values() if entry.is_due_ever)
        next_at = min(sendable, default=float("inf"))
        missing = max(0.0, 1 - self._bucket.left(now)) / PER_S
        return max(0.0, next_at - now, missing, self._paused_until - now)

    def hold(self, entry: Entry) -> bool:
        """Send nothing about a silenced incident until `release`, except the end of an alert that
        was sent. Return False if the alert is over and was never sent: the entry is removed. An
        attempt without a known result may have sent it.
        """
        if entry.alert.is_over and not entry.delivered and not entry.is_begun:
            del self.entries[entry.alert.incident]
            return False
        entry.is_held = True
        return True

    def release(self, entry: Entry, now: float) -> None:
        """Send the current version of a held entry, if the destination does not have it."""
        entry.is_held = False
        if not entry.is_delivered:
            entry.waiting_since, entry.due_at, entry.attempts = now, now, 0

    def begin(self, entry: Entry, now: float) -> None:
        """Count a request. The entry is not due until its result is known."""
        self._bucket.take(now)
        self.join(entry, now)

    def join(self, entry: Entry, now: float) -> None:
        """Add an entry of `find_more` to the request that `begin` has counted."""
        used_by = {(one.sharer, one.founder) for one in entry.alert.each}
        sharer, founder = min(used_by, key=lambda each: self._use.of(each[0], each[1], now))
        self._use.note(sharer, founder, 1 / PER_S, now)
        entry.due_at, entry.is_begun = float("inf"), True

    def put_back(self, entry: Entry, due_at: float) -> None:
        """Undo `begin` or `join`: nothing was sent. The entry is due again then."""
        entry.due_at, entry.is_begun = due_at, False

    def split(self, incidents: Sequence[str], now: float) -> None:
        """Record that a request of several alerts was refused: one of them may be the reason.

        They are sent again in requests of half the size, until the reason is alone.
        """
        self.failures += 1
        self._splits += 1
        for incident in incidents:
            if entry := self.entries.get(incident):
                entry.due_at, entry.is_begun = now, False

    def note_delivered(self, incident: str, version: int, receipt: str, now: float) -> Entry | None:
        """Record a delivery. Returns the entry; None if it was removed meanwhile."""
        entry = self.entries.get(incident)
        if entry is None:
            return None
        self.deliveries += 1
        entry.is_begun = False
        entry.delivered, entry.receipt, entry.attempts = version, receipt, 0
        if not entry.is_delivered:
            entry.due_at = now  # the alert changed during the delivery
            return entry
        entry.waiting_since = None
        entry.due_at = float("inf")
        if self.repeat_s is not None and not entry.alert.is_over:
            entry.due_at = now + self.repeat_s
        if entry.is_finished:
            del self.entries[incident]
        if all(each.is_delivered for each in self.entries.values()):
            self._splits = 0
        return entry

    def note_failed(
        self, incident: str, now: float, *, is_permanent: bool, retry_after_s: float | None
    ) -> float:
        """Record a failed attempt. Returns the seconds until the next one."""
        self.failures += 1
        if retry_after_s is not None:
            self._paused_until = max(self._paused_until, now + min(LAST_RETRY_S, retry_after_s))
        entry = self.entries.get(incident)
        if entry is None:
            return 0.0
        if is_permanent:
            self._splits = 0  # the reason for the splits is alone
        # An alert that must be repeated would end during a longer wait.
        last_s = wait_s = min(LAST_RETRY_S, self.repeat_s or LAST_RETRY_S)
        if not is_permanent:
            wait_s = min(last_s, FIRST_RETRY_S * 2 ** min(entry.attempts, 16))
        wait_s = min(LAST_RETRY_S, max(wait_s, retry_after_s or 0.0))
        entry.attempts += 1
        entry.due_at, entry.is_begun = now + wait_s, False
        return wait_s

    def give_up_end(self, incident: str, now: float) -> bool:
        """Remove the end of an alert that could not be delivered for long; return whether it is."""
        entry = self.entries.get(incident)
        if entry is None or not entry.alert.is_over or entry.waiting_since is None:
            return False
        if now - entry.waiting_since < END_GIVEN_UP_S:
            return False
        del self.entries[incident]
        return True

    def count_waiting(self) -> int:
        """Return the number of alerts whose current version was not delivered yet."""
        return len(self._waiting())

    def oldest_s(self, now: float) -> float:
        """Return how long the oldest of these has waited; 0 if nothing waits."""
        return max((now - since for since in self._waiting()), default=0.0)

    def _waiting(self) -> list[float]:
        entries = (entry for entry in self.entries.values() if entry.is_due_ever)
        return [entry.waiting_since for entry in entries if entry.waiting_since is not None]


STORE_S = 0.5
"""Seconds that a delivery waits for the store. On-call is notified even if the disk is full."""

_ALERTS = msgspec.json.Decoder(Alert)


class OutboxWrites:
    """The writes of one outbox. Call it from the tower's event loop only."""

    def __init__(self, destination: str, outbox: Outbox, store: Store, clock: Clock) -> None:
        self._destination, self._outbox = destination, outbox
        self._store, self._clock = store, clock
        self._unsaved: set[str] = set()
        """Incidents whose current entry is not written, and no write of it has begun."""
        self._saving: dict[str, Future[None]] = {}
        """The last unfinished write of each incident."""

    def save(self, entry: Entry) -> None:
        """Write an entry to the store, or remove it if the destination has received its end."""
        alert = entry.alert
        self._unsaved.discard(alert.incident)
        if entry.is_finished:
            ended = self._store.remove_alert(self._destination, alert.incident, self._clock.wall())
            self._saving[alert.incident] = ended
            return
        row = AlertRow(
            destination=self._destination,
            incident=alert.incident,
            alert=msgspec.json.encode(alert).decode(),
            version=alert.version,
            delivered=entry.delivered,
            receipt=entry.receipt,
            updated_at=self._clock.wall(),
        )
        self._saving[row.incident] = self._store.save_alert(row)

    def save_soon(self, entry: Entry) -> None:
        """Write a new version of an entry. Versions that follow each other faster than the store
        writes are written once: before the delivery, with the next check or by `save_all`."""
        saving = self._saving.get(entry.alert.incident)
        if saving is not None and not saving.done():
            self._unsaved.add(entry.alert.incident)
        else:
            self.save(entry)

    def remove(self, incident: str) -> None:
        """Remove the alert of an incident from the store."""
        self._saving[incident] = self._store.remove_alert(self._destination, incident)

    def save_all(self) -> None:
        """Write everything that is not written yet."""
        unsaved, self._unsaved = self._unsaved, set()
        for incident in unsaved:
            entry = self._outbox.entries.get(incident)
            if entry is not None:
                self.save(entry)
            else:
                self.remove(incident)

    def check(self) -> None:
        """Write again what could not be written, if no write is unfinished."""
        for incident, future in list(self._saving.items()):
            if future.done():
                del self._saving[incident]
                if future.exception() is not None:
                    self._unsaved.add(incident)
        if not self._saving:
            self.save_all()

    def is_stored(self, entry: Entry) -> bool:
        """Return whether the current entry is written."""
        saving = self._saving.get(entry.alert.incident)
        if entry.alert.incident in self._unsaved:
            return False
        return saving is None or (saving.done() and saving.exception() is None)

    async def wait_for(self, entries: Sequence[Entry]) -> None:
        """Wait until the entries are written, a write has failed, or `STORE_S` seconds are over."""
        for entry in entries:
            if entry.alert.incident in self._unsaved:
                self.save(entry)
        futures = [self._saving.get(entry.alert.incident) for entry in entries]
        wake = asyncio.get_running_loop().call_soon_threadsafe
        with contextlib.suppress(asyncio.TimeoutError):
            async with timeout(STORE_S):
                for saving in futures:
                    if saving is not None and not saving.done():
                        is_done = asyncio.Event()
                        saving.add_done_callback(partial(_wake, wake, is_done))
                        await is_done.wait()


def read_alert(row: AlertRow) -> Alert | None:
    """Return the alert of a row; None, with a warning, if another version has written it."""
    try:
        return _ALERTS.decode(row.alert)
    except msgspec.MsgspecError as error:
        log.warning("the alert of incident %s cannot be read: %s", row.incident, error)
        return None


def _wake(call_soon: Callable[..., object], event: asyncio.Event, _: Future[None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended
        call_soon(event.set)
