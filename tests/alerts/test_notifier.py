"""From incident events to a webhook: a real store, real HTTP, real time."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from tests.alerts.notifying import Run, acknowledged, an_incident, closed, opened, tell, updated
from tests.alerts.receivers import Receiver
from watchtower.alerts.destinations.webhook import Webhook
from watchtower.jobs.verdicts import close
from watchtower.tower.clock import Clock
from watchtower.wire.verdict import Status


def test_one_incident_is_one_alert_from_its_opening_to_its_end(tmp_path: Path, receiver: Receiver):
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

    tell(story, tmp_path, receiver)


def test_lines_about_an_alert_use_the_share_of_its_owner(
    tmp_path: Path, receiver: Receiver, caplog
):
    caplog.set_level("INFO", logger="watchtower.alerts")

    async def story(run: Run) -> None:
        receiver.status = 500
        run.notifier.note(opened(an_incident()))
        await run.wait_for_requests(1)
        receiver.status = 200
        await run.wait_for(1)
        await run.settle()

    tell(story, tmp_path, receiver)
    about = [one for one in caplog.records if "the alert of incident" in one.getMessage()]
    assert {getattr(one, "sharer", None) for one in about} == {"a"}
    assert {one.levelname for one in about} == {"WARNING", "INFO"}


def test_what_changes_while_the_store_is_slow_is_written_when_the_tower_stops(
    tmp_path: Path, receiver: Receiver
):
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

    tell(story, tmp_path, receiver)


@pytest.mark.parametrize("status", [500, 503, 429, 404, 301])
def test_a_destination_that_refuses_gets_the_alert_when_it_accepts_again(
    tmp_path: Path, receiver: Receiver, status: int
):
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

    tell(story, tmp_path, receiver)


def test_a_restarted_tower_sends_nothing_twice_and_ends_what_it_has_sent(
    tmp_path: Path, receiver: Receiver
):
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

    tell(story, tmp_path, receiver)


def test_an_incident_whose_alert_was_not_stored_before_a_kill_gets_one(
    tmp_path: Path, receiver: Receiver
):
    async def story(run: Run) -> None:
        await run.save(an_incident())
        await run.restart()
        await run.wait_for(1)
        assert receiver.keys == ["01A:1"]

    tell(story, tmp_path, receiver)


def test_an_alert_ends_if_the_tower_was_killed_after_the_end_was_stored(
    tmp_path: Path, receiver: Receiver
):
    async def story(run: Run) -> None:
        incident = an_incident()
        run.notifier.note(opened(incident))
        await run.wait_for(1)
        await run.settle()
        await run.save(close(incident, Status.RECOVERED, Clock().wall()))
        await run.restart()
        await run.wait_for(2)
        assert receiver.accepted[1]["status"] == "resolved"

    tell(story, tmp_path, receiver)


def test_a_silenced_job_has_no_alert_until_the_silence_ends(tmp_path: Path, receiver: Receiver):
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

    tell(story, tmp_path, receiver)


def test_drills_have_no_alerts(tmp_path: Path, receiver: Receiver):
    async def story(run: Run) -> None:
        run.notifier.note(opened(an_incident("01D", "drill:x")))
        run.notifier.note(opened(an_incident("01E")))
        await run.wait_for(1)
        assert receiver.keys == ["01E:1"]

    tell(story, tmp_path, receiver)


def test_an_acknowledgement_changes_the_text(tmp_path: Path, receiver: Receiver):
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

    tell(story, tmp_path, receiver)


def test_an_incident_of_shadow_mode_has_no_alert_until_it_leaves_shadow_mode(
    tmp_path: Path, receiver: Receiver
):
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

    tell(story, tmp_path, receiver)


def test_the_end_waits_where_a_prometheus_may_still_send_the_alert(
    tmp_path: Path, receiver: Receiver
):
    async def story(run: Run) -> None:
        for ident, end in (("01A", closed), ("01B", acknowledged)):
            run.notifier.note(opened(an_incident(ident)))
            while run.notifier.outboxes()["slow end"].entries[ident].delivered == 0:
                await asyncio.sleep(0.01)
            run.notifier.note(end(an_incident(ident)))
            entry = run.notifier.outboxes()["slow end"].entries[ident]
            assert entry.due_at - Clock().now() > 50

    tell(story, tmp_path, receiver, [Webhook(receiver.url, name="slow end", end_delay_s=60.0)])
