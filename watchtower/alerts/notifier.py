"""Sends alerts: a listener of incident events with an outbox and a thread for each destination.

What must be sent and what was sent is in the store, so that a restarted tower loses no alert and
sends none again. A version is stored before it is sent: two texts never have the same version, even
if the tower is killed in between. A destination that is slow or down delays no other one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

from watchtower.alerts.alert import Alert, end_alert, is_wanted, make_alert
from watchtower.alerts.destination import DeliveryError, Destination, ListDestination
from watchtower.alerts.labels import NO_LINKS, AlertLinks
from watchtower.alerts.outage_alert import OutageAlerts
from watchtower.alerts.outbox import END_GIVEN_UP_S, Entry, Outbox, OutboxWrites, read_alert
from watchtower.incidents.incident import Incident
from watchtower.service.calls import DaemonExecutor, timeout
from watchtower.store.protocol import Store
from watchtower.store.values import AlertRow
from watchtower.tower.clock import Clock
from watchtower.tower.incident_events import Change, IncidentEvent
from watchtower.views.people import Subject, subject_of
from watchtower.wire.drills import is_drill

log = logging.getLogger("watchtower.alerts")

CHECK_S = 1.0
"""Seconds between two checks of silences and failed writes."""

DELIVERY_S = 30.0
"""Seconds after which a delivery counts as failed, although its thread may still be blocked."""

MaySend = Callable[[], Awaitable[bool]]
"""Returns whether this tower still owns the jobs."""

MustWait = Callable[[Sequence[str], float], bool]
"""Returns whether an alert about these jobs, which is not stored, waits after so many seconds."""

GATHER_S, REGATHER_S = 2.0, 10.0
"""Seconds in which changes of an outage are gathered: before its first message, and before each
later one. The documented Alertmanager route has the same `group_wait` and `group_interval`."""


class _Sender:
    """One destination with its outbox and its thread."""

    def __init__(self, destination: Destination, store: Store, clock: Clock) -> None:
        self.destination = destination
        most = destination.most if isinstance(destination, ListDestination) else 1
        self.outbox = Outbox(destination.repeat_s, most)
        self.wake = asyncio.Event()
        self.thread = DaemonExecutor(f"alerts-{destination.name}")
        self.writes = OutboxWrites(destination.name, self.outbox, store, clock)


class AlertNotifier:
    """Receives incident events and sends alerts. Call it from the tower's event loop only."""

    def __init__(
        self,
        destinations: Sequence[Destination],
        store: Store,
        clock: Clock,
        links: AlertLinks = NO_LINKS,
        *,
        is_drill: bool = False,
    ) -> None:
        """`is_drill`: every alert is marked as a drill."""
        self.senders = {each.name: _Sender(each, store, clock) for each in destinations}
        self._store, self._clock, self._links = store, clock, links
        self._is_drill = is_drill
        self._alerts: dict[str, Alert] = {}
        """The current alert of each open incident."""
        self._outages = OutageAlerts(links)
        self._held: dict[str, IncidentEvent] = {}
        """The last event of each incident that has no alert yet, because it is silenced or the
        tower has just started."""
        self._to_check: set[str] = set()
        """Incidents with an alert that are not open in the store any more."""
        self._tasks: list[asyncio.Task[None]] = []
        self._is_silenced: Callable[[Subject], bool] = lambda _: False
        self._may_send: MaySend | None = None
        self._must_wait: MustWait = lambda _, __: False

    def recall(self, rows: Iterable[AlertRow], incidents: Iterable[Incident]) -> None:
        """Continue with the outbox of the tower's last run.

        `incidents` are those that are open in the store. An open one without an alert gets one: the
        tower may have been killed before the alert was stored.
        """
        now, wall = self._clock.now(), self._clock.wall()
        for row in rows:
            sender, alert = self.senders.get(row.destination), read_alert(row)
            if sender is not None and alert is not None:
                waiting_s = max(0.0, wall - row.updated_at)
                sender.outbox.restore(alert, row.delivered, row.receipt, waiting_s, now)
                if not alert.is_over:
                    if sender.destination.joins_outages:
                        self._outages.restore(alert)
                    self._recall_alert(alert)
        self._fill_added()
        still_open = {one.id: one for one in incidents if one.closed_at is None}
        self._to_check = self._alerts.keys() - still_open.keys()
        self._held = {
            ident: IncidentEvent(change=Change.OPENED, incident=incident)
            for ident, incident in still_open.items()
            if ident not in self._alerts
        }

    def _fill_added(self) -> None:
        """Put open alerts into the outbox of a destination that the last run did not have."""
        alerts = sorted(self._alerts.values(), key=lambda alert: alert.incident)
        for alert in alerts:
            self._outages.find(alert) or self._outages.put(alert)
        for sender in self.senders.values():
            for alert in alerts:
                message = self._outages.find(alert) if sender.destination.joins_outages else None
                shown = message or alert
                if shown.incident not in sender.outbox.entries:
                    self._put_into(sender, shown)

    def _recall_alert(self, alert: Alert) -> None:
        for one in alert.each:
            known = self._alerts.get(one.incident)
            if not one.is_over and (known is None or known.version < one.version):
                self._alerts[one.incident] = one

    def start(
        self,
        is_silenced: Callable[[Subject], bool],
        may_send: MaySend | None = None,
        must_wait: MustWait = lambda _, __: False,
    ) -> None:
        """Begin to send. `is_silenced` returns whether alerts about a subject are silenced.

        `may_send` is asked before each message. After its first refusal nothing is sent any more.
        `must_wait` is asked about an alert that is not stored.
        """
        self._is_silenced, self._may_send, self._must_wait = is_silenced, may_send, must_wait
        works = [self._send_forever(sender) for sender in self.senders.values()]
        works.append(self._check_forever())
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(work) for work in works]

    async def close(self) -> None:
        """Stop sending. Unsent alerts stay in the store."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for sender in self.senders.values():
            sender.thread.stop(0.0)
            sender.writes.save_all()

    def note(self, event: IncidentEvent) -> None:
        """Put the alert of an event into the outbox of every destination."""
        ident, job = event.incident.id, event.incident.job
        before = self._alerts.get(ident)
        if is_drill(job) or not self.senders or (before is None and not is_wanted(event)):
            self._held.pop(ident, None)
            return
        if before is None and self._is_silenced(subject_of(event.incident)):
            self._hold_event(event)
            return
        self._held.pop(ident, None)
        alert = make_alert(event, self._links, before, is_drill=self._is_drill)
        if before is not None and alert.version == before.version:
            return
        self._put(alert)

    def _hold_event(self, event: IncidentEvent) -> None:
        """Store the event of a silenced incident without an alert, until the silence or it ends."""
        incident = replace(event.incident, evidence=None)
        if incident.closed_at is None:
            self._held[incident.id] = replace(event, incident=incident)

    def _put(self, alert: Alert) -> None:
        if alert.is_over:
            self._alerts.pop(alert.incident, None)
        else:
            self._alerts[alert.incident] = alert
        message = self._outages.put(alert)
        for sender in self.senders.values():
            self._put_into(sender, message if sender.destination.joins_outages else alert)

    def _put_into(self, sender: _Sender, alert: Alert) -> None:
        dropped = sender.outbox.put(alert, self._clock.now(), _find_delay_s(sender, alert))
        if dropped is not None:
            words = (sender.destination.name, dropped.incident)
            log.error(
                "no alert to %s for incident %s: too many alerts wait",
                *words,
                extra={"sharer": dropped.sharer},
            )
            sender.writes.remove(dropped.incident)
        if entry := sender.outbox.entries.get(alert.incident):
            sender.writes.save_soon(entry)
            sender.wake.set()

    def outboxes(self) -> dict[str, Outbox]:
        """Return the outbox of each destination, by its name."""
        return {name: sender.outbox for name, sender in self.senders.items()}

    async def _send_forever(self, sender: _Sender) -> None:
        while True:
            sender.wake.clear()
            now = self._clock.now()
            entry = sender.outbox.find_next(now)
            if entry is not None and self._hold(sender, entry):
                continue
            if entry is not None:
                sender.outbox.begin(entry, now)
                more = sender.outbox.find_more(now)
                together = [entry, *(each for each in more if not self._must_hold(each))]
                for other in together[1:]:
                    sender.outbox.join(other, now)
                alerts, receipt = [each.alert for each in together], entry.receipt
                await sender.writes.wait_for(together)
                if self._may_send is not None and not await self._may_send():
                    return  # another tower sends it: it reads what is stored
                if self._put_back_unstored(sender, together):
                    continue
                await self._deliver(sender, alerts, receipt)
                continue
            wait_s = min(sender.outbox.wait_s(now), 3600.0)
            # Not wait_for: before Python 3.12 it may swallow a cancellation.
            with contextlib.suppress(asyncio.TimeoutError):
                async with timeout(max(wait_s, 0.01)):
                    await sender.wake.wait()

    def _put_back_unstored(self, sender: _Sender, together: Sequence[Entry]) -> bool:
        """Send nothing now if an alert is not stored, and another tower may send it, too."""
        now = self._clock.now()
        must_wait = any(
            not sender.writes.is_stored(entry)
            and self._must_wait(
                [one.labels.get("training_job", "") for one in entry.alert.each],
                now - (now if entry.waiting_since is None else entry.waiting_since),
            )
            for entry in together
        )
        for entry in together if must_wait else ():
            sender.outbox.put_back(entry, now + CHECK_S)
        return must_wait

    def _hold(self, sender: _Sender, entry: Entry) -> bool:
        """Return whether nothing is sent now, because the alert was silenced after it was made.

        The end of an alert that was sent is sent, so that no alert stays open. All silenced alerts
        are held at once, so that thousands of them do not block the event loop one by one.
        """
        if not self._must_hold(entry):
            return False
        for each in list(sender.outbox.entries.values()):
            if self._must_hold(each) and not sender.outbox.hold(each):
                sender.writes.remove(each.alert.incident)
        is_removed = entry.alert.incident not in sender.outbox.entries
        return is_removed or not entry.is_due_ever

    def _must_hold(self, entry: Entry) -> bool:
        return entry.is_held or self._is_alert_silenced(entry.alert)

    def _is_alert_silenced(self, alert: Alert) -> bool:
        """Return whether all open incidents of an alert are silenced. If the alert is over: whether
        all its incidents are."""
        concerned = [one for one in alert.each if not one.is_over] or alert.each
        return all(self._is_silenced(one.subject) for one in concerned)

    def _release(self) -> None:
        """Send what was held for silences that have ended."""
        now = self._clock.now()
        for sender in self.senders.values():
            for entry in sender.outbox.entries.values():
                if entry.is_held and not self._is_alert_silenced(entry.alert):
                    sender.outbox.release(entry, now)
                    sender.wake.set()

    async def _deliver(self, sender: _Sender, alerts: Sequence[Alert], receipt: str) -> None:
        name, outbox = sender.destination.name, sender.outbox
        first, began = alerts[0].incident, time.monotonic()
        extra = {"sharer": alerts[0].each[0].sharer}
        which = first if len(alerts) == 1 else f"{first} and {len(alerts) - 1} more"
        try:
            sending = sender.thread.submit(lambda: _send(sender.destination, alerts, receipt))
            async with timeout(DELIVERY_S):
                receipt = await asyncio.wrap_future(sending)
        except Exception as error:
            wait_s = self._note_failed(sender, alerts, error)
            reason = str(error) if isinstance(error, DeliveryError) else repr(error)
            if isinstance(error, asyncio.TimeoutError):
                reason = f"no result within {DELIVERY_S:g} s"
            words = (which, name, reason, wait_s)
            log.warning(
                "the alert of incident %s was not sent to %s: %s; next attempt in %.0f s",
                *words,
                extra=extra,
            )
            return
        took_s, now = time.monotonic() - began, self._clock.now()
        sent = (which, name, took_s)
        log.info("the alert of incident %s was sent to %s in %.1f s", *sent, extra=extra)
        for alert in alerts:
            entry = outbox.entries.get(alert.incident)
            before = (entry.delivered, entry.receipt) if entry else None
            entry = outbox.note_delivered(alert.incident, alert.version, receipt, now)
            if entry is not None and (entry.delivered, entry.receipt) != before:
                sender.writes.save(entry)

    def _note_failed(self, sender: _Sender, alerts: Sequence[Alert], error: Exception) -> float:
        """Record a failed request. Returns the seconds until the next attempt."""
        outbox = sender.outbox
        now, is_permanent = self._clock.now(), getattr(error, "is_permanent", False)
        incidents = [alert.incident for alert in alerts]
        if is_permanent and len(incidents) > 1:
            outbox.split(incidents, now)
            return 0.0
        retry_after_s = getattr(error, "retry_after_s", None)
        waits = [
            outbox.note_failed(
                incident, now, is_permanent=is_permanent, retry_after_s=retry_after_s
            )
            for incident in incidents
        ]
        for alert in alerts:
            if outbox.give_up_end(alert.incident, now):
                sender.writes.remove(alert.incident)
                log.error(
                    "the end of the alert of incident %s is not sent to %s any more: it was "
                    "refused for %.0f hours",
                    *(alert.incident, sender.destination.name, END_GIVEN_UP_S / 3600),
                    extra={"sharer": alert.each[0].sharer},
                )
        return max(waits)

    async def _check_forever(self) -> None:
        while True:
            try:
                for event in list(self._held.values()):
                    if not self._is_silenced(subject_of(event.incident)):
                        self.note(event)
                self._release()
                for sender in self.senders.values():
                    sender.writes.check()
                await self._end_closed()
            except Exception:  # the next check may work again
                log.exception("the check of alerts failed")
            await asyncio.sleep(CHECK_S)

    async def _end_closed(self) -> None:
        """End the alerts of incidents that the last run closed before it could store that.

        An incident that is not in the store was not written, or it was deleted: no event ends it.
        """
        for ident in sorted(self._to_check):
            try:
                incident = await asyncio.wrap_future(self._store.incident(ident, with_case=False))
            except Exception as error:
                log.warning("cannot read incident %s to end its alert: %s", ident, error)
                return
            self._to_check.discard(ident)
            alert = self._alerts.get(ident)
            if incident is not None and incident.closed_at is not None:
                self.note(IncidentEvent(change=Change.CLOSED, incident=incident))
            elif incident is None and alert is not None:
                self._put(end_alert(alert, self._clock.wall()))


def _send(destination: Destination, alerts: Sequence[Alert], receipt: str) -> str:
    if len(alerts) > 1 and isinstance(destination, ListDestination):
        destination.deliver_all(alerts)
        return ""
    return destination.deliver(alerts[0], receipt)


def _find_delay_s(sender: _Sender, alert: Alert) -> float:
    """Return after how many seconds a change is sent. Further changes of an outage are awaited."""
    if not alert.fires and sender.destination.end_delay_s:
        return sender.destination.end_delay_s
    if not alert.outage or not sender.destination.joins_outages:
        return 0.0
    known = sender.outbox.entries.get(alert.incident)
    return REGATHER_S if known is not None and known.delivered else GATHER_S
