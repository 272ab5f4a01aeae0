"""From incident events to a webhook: a real store, real HTTP, real time."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from tests.alerts.notifying import Run, acknowledged, an_incident, closed, opened, updated
from tests.alerts.receivers import Api, serving
from tests.alerts.test_outage_alerts import identities, on_mount
from watchtower.alerts.destinations.alertmanager import Alertmanager
from watchtower.alerts.destinations.webhook import Webhook
from watchtower.alerts.notifier import AlertNotifier
from watchtower.jobs.verdicts import close
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.wire.verdict import Status


def test_one_incident_is_one_alert_from_its_opening_to_its_end(tell, receiver):
    async def story(run: Run) -> None:
        incident = an_incident()
        run.notifier.note(opened(incident))
        (first,) = await run.wait_for(1)
        (alert,) = first["alerts"]
        assert alert["labels"] == {
            "alertname": "WatchtowerJobHung",
            "severity": "critical",
            "training_job": "llama",
            "incident": "01A",
            "kind": "hung",
            "domain": "unknown",
        }
        assert "rank 3 on gpu-1" in alert["annotations"]["summary"]
        run.notifier.note(updated(incident))  # nothing changed
        corrected = an_incident(rank=5)
        run.notifier.note(updated(corrected))
        second = (await run.wait_for(2))[1]
        assert "rank 5 on gpu-1" in second["alerts"][0]["annotations"]["summary"]
        assert second["alerts"][0]["labels"] == alert["labels"]
        run.notifier.note(closed(corrected))
        third = (await run.wait_for(3))[2]
        assert (third["status"], third["alerts"][0]["status"]) == ("resolved", "resolved")
        assert receiver.keys == ["01A:1", "01A:2", "01A:3"]

    tell(story)


def test_lines_about_an_alert_use_the_share_of_its_owner(tell, receiver, caplog):
    caplog.set_level("INFO", logger="watchtower.alerts")

    async def story(run: Run) -> None:
        receiver.status = 500
        run.notifier.note(opened(an_incident()))
        await run.wait_for_requests(1)
        receiver.status = 200
        await run.wait_for(1)
        await run.settle()

    tell(story)
    about = [one for one in caplog.records if "the alert of incident" in one.getMessage()]
    assert {getattr(one, "sharer", None) for one in about} == {"a"}
    assert {one.levelname for one in about} == {"WARNING", "INFO"}


def test_what_changes_while_the_store_is_slow_is_written_when_the_tower_stops(tell):
    async def story(run: Run) -> None:
        run.notifier.note(opened(an_incident()))
        await run.wait_for(1)
        await run.settle()
        assert run.stored == {"01A": (1, 1)}
        with contextlib.closing(sqlite3.connect(run.path)) as other:
            other.execute("BEGIN IMMEDIATE")
            for rank in (5, 6, 7):  # the first is being written, the others wait for it
                run.notifier.note(updated(an_incident(rank=rank)))
        await run.end()
        assert run.stored == {"01A": (4, 1)}
        run.begin()
        assert (
            "rank 7 on gpu-1" in (await run.wait_for(2))[1]["alerts"][0]["annotations"]["summary"]
        )

    tell(story)


@pytest.mark.parametrize("status", [500, 503, 429, 404, 301])
def test_a_destination_that_refuses_gets_the_alert_when_it_accepts_again(tell, receiver, status):
    async def story(run: Run) -> None:
        receiver.status = status
        await run.save(an_incident())
        run.notifier.note(opened(an_incident()))
        await run.wait_for_requests(1)
        await run.end()
        receiver.status = 200  # now, because an attempt that a restart cuts off is repeated
        run.begin()  # also ends the long wait after a refusal
        await run.wait_for(1)
        await run.settle()
        assert receiver.keys == ["01A:1"]

    tell(story)


def test_a_restarted_tower_sends_nothing_twice_and_ends_what_it_has_sent(tell, receiver):
    async def story(run: Run) -> None:
        incident = an_incident()
        await run.save(incident)
        run.notifier.note(opened(incident))
        await run.wait_for(1)
        await run.settle()
        for _ in range(3):
            await run.restart()
            run.notifier.note(updated(incident))
        run.notifier.note(closed(incident))
        await run.wait_for(2)
        await run.settle()
        await run.restart()
        assert receiver.keys == ["01A:1", "01A:2"]

    tell(story)


def test_an_incident_whose_alert_was_not_stored_before_a_kill_gets_one(tell, receiver):
    async def story(run: Run) -> None:
        await run.save(an_incident())
        await run.restart()
        await run.wait_for(1)
        assert receiver.keys == ["01A:1"]

    tell(story)


def test_an_alert_ends_if_the_tower_was_killed_after_the_end_was_stored(tell, receiver):
    async def story(run: Run) -> None:
        incident = an_incident()
        run.notifier.note(opened(incident))
        await run.wait_for(1)
        await run.settle()
        await run.save(close(incident, Status.RECOVERED, Clock().wall()))
        await run.restart()
        await run.wait_for(2)
        assert receiver.accepted[1]["status"] == "resolved"

    tell(story)


def test_a_silenced_job_has_no_alert_until_the_silence_ends(tell, receiver):
    async def story(run: Run) -> None:
        run.silenced.add("quiet")
        run.notifier.note(opened(an_incident("01Q", "quiet")))
        run.notifier.note(opened(an_incident("01R", "quiet")))
        run.notifier.note(closed(an_incident("01R", "quiet")))
        run.notifier.note(opened(an_incident("01L", "loud")))
        await run.wait_for(1)
        await run.settle()
        assert receiver.keys == ["01L:1"]
        run.silenced.clear()
        await run.wait_for(2)
        assert receiver.keys == ["01L:1", "01Q:1"]

    tell(story)


def test_drills_have_no_alerts(tell, receiver):
    async def story(run: Run) -> None:
        run.notifier.note(opened(an_incident("01D", "drill:x")))
        run.notifier.note(opened(an_incident("01E")))
        await run.wait_for(1)
        assert receiver.keys == ["01E:1"]

    tell(story)


def test_an_acknowledgement_changes_the_text(tell, receiver):
    async def story(run: Run) -> None:
        incident = an_incident()
        run.notifier.note(opened(incident))
        await run.wait_for(1)
        run.notifier.note(acknowledged(incident))
        await run.wait_for(2)
        notes = receiver.accepted[1]["alerts"][0]["annotations"]
        assert notes["state"] == "acked"
        assert "acknowledged by ann" in notes["summary"]
        assert "alice" in notes["summary"]

    tell(story)


def test_an_incident_of_shadow_mode_has_no_alert_until_it_leaves_shadow_mode(tell, receiver):
    async def story(run: Run) -> None:
        hidden, other = (replace(an_incident(ident), shadow=True) for ident in ("01S", "01T"))
        await run.save(hidden)
        await run.restart()  # a starting tower sends no alert of shadow mode either
        run.notifier.note(opened(hidden))
        run.notifier.note(updated(hidden))
        run.notifier.note(opened(other))
        run.notifier.note(closed(other))
        run.notifier.note(opened(an_incident("01L")))
        await run.wait_for(1)
        run.notifier.note(updated(replace(hidden, shadow=False)))
        await run.wait_for(2)
        assert receiver.keys == ["01L:1", "01S:1"]

    tell(story)


def test_the_end_waits_where_a_prometheus_may_still_send_the_alert(tell, receiver):
    async def story(run: Run) -> None:
        for ident, end in (("01A", closed), ("01B", acknowledged)):
            run.notifier.note(opened(an_incident(ident)))
            while run.notifier.outboxes()["slow end"].entries[ident].delivered == 0:
                await asyncio.sleep(0.01)
            run.notifier.note(end(an_incident(ident)))
            entry = run.notifier.outboxes()["slow end"].entries[ident]
            assert entry.due_at - Clock().now() > 50

    tell(story, destinations=[Webhook(receiver.url, name="slow end", end_delay_s=60.0)])


def test_a_destination_that_is_added_gets_the_alerts_that_are_open(tell, receiver):
    async def story(run: Run) -> None:
        await run.save(an_incident())
        run.notifier.note(opened(an_incident()))
        await run.wait_for(1)
        await run.settle()
        run.destinations = [Webhook(receiver.url), Webhook(receiver.url, name="added")]
        await run.restart()
        await run.wait_for(2)
        await run.settle()
        await run.restart()
        await run.settle()
        assert receiver.keys == ["01A:1", "01A:1"]

    tell(story)


def test_a_destination_that_is_added_gets_the_message_of_an_open_outage(tell, receiver):
    async def story(run: Run) -> None:
        for ident in ("01A", "01B"):
            await run.save(on_mount(ident))
            run.notifier.note(opened(on_mount(ident)))
        await run.settle()
        run.destinations = [Webhook(receiver.url)]
        await run.restart()
        (message,) = await run.wait_for(1)
        assert [ident for ident, _ in identities(message)] == ["01A", "01B"]
        for ident in ("01A", "01B"):
            run.notifier.note(closed(on_mount(ident)))
        assert (await run.wait_for(2))[1]["status"] == "resolved"
        await run.settle()
        assert set(receiver.keys) == {"01A:2", "01A:4"}

    with serving() as api:
        tell(story, destinations=[Alertmanager(f"{api.url}/api/v2/alerts")])


OPEN = 500


def received(api: Api) -> set[str]:
    return {alert["labels"]["incident"] for body in api.bodies for alert in body}


async def wait_for(api: Api, count: int) -> None:
    while len(received(api)) < count:
        await asyncio.sleep(0.01)


@pytest.mark.long
def test_500_open_alerts_delay_no_new_one_and_are_all_repeated(tmp_path: Path):
    async def story(api: Api) -> None:
        store = SqliteStore(tmp_path / "watchtower.db")
        destination = Alertmanager(f"{api.url}/api/v2/alerts", repeat_s=3.0, end_delay_s=0.0)
        notifier = AlertNotifier([destination], store, Clock())
        notifier.start(lambda _: False)
        try:
            incidents = [an_incident(f"i{number}", f"job-{number}") for number in range(OPEN)]
            for incident in incidents:
                notifier.note(opened(incident))
            await wait_for(api, OPEN)
            assert len(api.requests) <= 3
            for number in range(3):
                sent = len(api.requests)
                notifier.note(opened(an_incident(f"new-{number}", f"new-{number}")))
                await wait_for(api, OPEN + number + 1)
                assert f"new-{number}" in str(api.bodies[: sent + 2])  # one was on its way
            sent = len(api.requests)
            while len(api.requests) <= sent + 2:
                await asyncio.sleep(0.01)
            repeated = {one["labels"]["incident"] for body in api.bodies[sent:] for one in body}
            assert repeated >= {incident.id for incident in incidents}
            notifier.note(closed(incidents[7]))
            while incidents[7].id in notifier.outboxes()["alertmanager"].entries:
                await asyncio.sleep(0.01)
        finally:
            await notifier.close()
            store.close()

    with serving() as api:
        asyncio.run(asyncio.wait_for(story(api), 90))
