"""Alerts while disks, clocks, names, owners and receivers misbehave."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

from tests.alerts.notifying import Run, an_incident, opened, updated
from tests.alerts.receivers import receiving
from tests.tower.test_failing_store import no_room
from watchtower.alerts.destinations.webhook import Webhook
from watchtower.alerts.notifier import AlertNotifier
from watchtower.jobs.verdicts import close
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.tower.incident_events import Change, IncidentEvent
from watchtower.wire.verdict import Status


def test_a_version_is_stored_before_it_is_sent(tell, receiver):
    """Else a killed tower could send another text under a version that a receiver already has."""

    async def story(run: Run) -> None:
        receiver.status = 503  # so that no delivery is stored
        run.notifier.note(opened(an_incident()))
        await run.wait_for_requests(1)
        assert run.stored == {"01A": (1, 0)}
        run.notifier.note(updated(an_incident(rank=5)))
        await run.wait_for_requests(2)
        assert run.stored == {"01A": (2, 0)}

    tell(story)


def test_a_silence_is_known_before_the_alerts_of_open_incidents_are_sent(tell, receiver):
    async def story(run: Run) -> None:
        run.silenced.add("quiet")
        for incident in (an_incident("01Q", "quiet"), an_incident("01L", "loud")):
            await run.save(incident)
        await run.restart()
        await run.wait_for(1)
        await asyncio.sleep(0.2)
        assert receiver.keys == ["01L:1"]

    tell(story)


def test_an_alert_ends_if_its_incident_is_not_in_the_store(tell, receiver):
    async def story(run: Run) -> None:
        run.notifier.note(opened(an_incident()))
        await run.wait_for(1)
        await run.settle()
        await run.restart()
        await run.wait_for(2)
        await run.settle()
        await run.restart()
        assert receiver.keys == ["01A:1", "01A:2"]
        assert receiver.alerts[1]["status"] == "resolved"
        assert receiver.alerts[1]["annotations"]["state"] == "closed"

    tell(story)


def test_alerts_are_sent_while_the_disk_is_full_and_stored_later(tell):
    async def story(run: Run) -> None:
        with no_room():
            run.notifier.note(opened(an_incident("01A")))
            run.notifier.note(opened(an_incident("01B")))
            await run.wait_for(2)
            await asyncio.sleep(0.2)
        while run.stored != {"01A": (1, 1), "01B": (1, 1)}:
            await asyncio.sleep(0.05)

    tell(story)


def test_the_end_is_not_before_the_start_if_the_wall_clock_jumps(tell, receiver):
    async def story(run: Run) -> None:
        incident = an_incident()
        done = close(incident, Status.RECOVERED, incident.opened_at - 86_400)
        run.notifier.note(opened(incident))
        await run.wait_for(1)
        run.notifier.note(IncidentEvent(change=Change.CLOSED, incident=done))
        await run.wait_for(2)
        end = receiver.alerts[1]
        assert end["endsAt"] == end["startsAt"]

    tell(story)


def test_hostile_names_and_texts_stay_in_their_places(tell, receiver):
    hostile = (
        "<!channel> [x](http://evil.example) `rm`\n[RECOVERED] all\u202e\x1b[2J" + "x" * 10_000
    )

    async def story(run: Run) -> None:
        incident = an_incident(job=hostile)
        suspect = replace(incident.verdict.suspects[0], why=hostile, node=hostile)
        verdict = replace(incident.verdict, suspects=(suspect,), next_steps=(hostile,))
        run.notifier.note(opened(replace(incident, verdict=verdict)))
        await run.wait_for(1)
        (alert,) = receiver.alerts
        lines = alert["annotations"]["description"].split("\n")
        assert len(lines) <= 3
        assert all(len(line) <= 300 and line.isprintable() for line in lines)
        for text in (*alert["labels"].values(), *alert["annotations"].values()):
            assert len(text) <= 1000
            assert text.replace("\n", "").isprintable()
        assert len(json.dumps(receiver.accepted[0])) < 10_000
        assert alert["annotations"]["summary"].startswith("[HUNG")

    tell(story)


def test_the_alert_of_one_owner_does_not_wait_for_300_of_another(tell, receiver):
    async def story(run: Run) -> None:
        for number in range(300):
            run.notifier.note(opened(replace(an_incident(f"m{number}"), sharer="many")))
        await run.wait_for(30)  # all that may be sent at once
        sent = len(receiver.keys)
        run.notifier.note(opened(replace(an_incident("one"), sharer="few")))
        while "one:1" not in receiver.keys:
            await asyncio.sleep(0.01)
        assert receiver.keys.index("one:1") <= sent + 1  # one was on its way

    tell(story)


def test_a_receiver_that_never_answers_delays_no_other_destination(tell, receiver):
    async def story(run: Run) -> None:
        await run.end()
        with receiving() as stuck:
            stuck.delay_s = 20.0
            run.store = SqliteStore(run.path)
            places = [Webhook(stuck.url, name="stuck"), Webhook(receiver.url)]
            run.notifier = AlertNotifier(places, run.store, Clock())
            run.notifier.start(run.silenced.__contains__)
            for number in range(20):
                run.notifier.note(opened(an_incident(f"i{number}")))
            await run.wait_for(20)
            senders = run.notifier.senders
            while senders["webhook"].outbox.count_waiting():  # its last reply is on its way
                await asyncio.sleep(0.01)
            assert senders["stuck"].outbox.count_waiting() == 20

    tell(story)
