"""The messages of direct destinations about a silenced incident."""

from __future__ import annotations

import asyncio
import time

from tests.alerts.notifying import Run, an_incident, closed, opened, updated
from tests.alerts.test_outage_alerts import message_of, on_mount
from watchtower.alerts.alert import make_alert
from watchtower.alerts.labels import NO_LINKS


def test_a_silence_stops_changes_of_an_alert_and_its_end_is_sent(tell, receiver):
    async def story(run: Run) -> None:
        await run.save(an_incident())
        run.notifier.note(opened(an_incident()))
        await run.wait_for(1)
        run.silenced.add("llama")
        corrected = an_incident(rank=5)
        run.notifier.note(updated(corrected))
        await run.settle()
        await run.restart()  # a silence outlives the tower
        await run.settle()
        assert receiver.keys == ["01A:1"]
        run.notifier.note(closed(corrected))
        await run.wait_for(2)
        assert receiver.accepted[1]["status"] == "resolved"

    tell(story)


def test_the_current_text_is_sent_when_the_silence_ends(tell, receiver):
    async def story(run: Run) -> None:
        run.silenced.add("llama")
        await run.save(an_incident())
        run.notifier.note(opened(an_incident()))
        await run.settle()
        run.notifier.note(updated(an_incident(rank=5)))
        await run.save(an_incident(rank=5))
        await run.restart()
        assert receiver.keys == []
        run.silenced.clear()
        (first,) = await run.wait_for(1)
        assert "rank 5 on gpu-1" in first["alerts"][0]["annotations"]["summary"]

    tell(story)


def test_an_alert_that_waits_for_its_destination_can_be_silenced(tell, receiver):
    async def story(run: Run) -> None:
        receiver.status = 503
        run.notifier.note(opened(an_incident()))
        await run.wait_for_requests(1)
        run.silenced.add("llama")
        receiver.status = 200
        await run.settle()
        run.notifier.note(closed(an_incident()))
        await run.settle()
        run.silenced.clear()
        run.notifier.note(opened(an_incident("01B", "other")))
        await run.wait_for(1)
        await run.settle()
        assert receiver.keys == ["01B:1"]
        assert run.stored == {"01B": (1, 1)}

    tell(story)


def test_an_incident_that_ends_just_after_its_silence_has_no_alert(tell, receiver):
    async def story(run: Run) -> None:
        run.silenced.add("llama")
        run.notifier.note(opened(an_incident()))
        await run.settle()
        run.silenced.clear()
        run.notifier.note(closed(an_incident()))  # before the next check of silences
        run.notifier.note(opened(an_incident("01B")))
        await run.wait_for(1)
        await run.settle()
        assert receiver.keys == ["01B:1"]

    tell(story)


def test_a_silenced_alert_does_not_count_as_waiting(tell):
    async def story(run: Run) -> None:
        run.silenced.add("llama")
        run.notifier.note(opened(an_incident()))
        await run.settle()
        await asyncio.sleep(0.1)
        (outbox,) = run.notifier.outboxes().values()
        assert (outbox.count_waiting(), outbox.oldest_s(1e12)) == (0, 0.0)

    tell(story)


def test_thousands_of_silenced_incidents_do_not_block_the_tower(tell, receiver):
    async def story(run: Run) -> None:
        run.silenced.add("llama")
        for number in range(3000):
            run.notifier.note(opened(an_incident(f"01{number}")))
        run.notifier.note(opened(an_incident("01L", "loud")))
        began = time.process_time()
        await run.wait_for(1)
        assert receiver.keys == ["01L:1"]
        assert time.process_time() - began < 3
        await run.settle()
        (outbox,) = run.notifier.outboxes().values()
        assert outbox.count_waiting() == 0

    tell(story)


def test_a_message_changes_while_one_of_its_open_incidents_is_not_silenced(tell, receiver):
    async def story(run: Run) -> None:
        for ident, job in (("01A", "llama"), ("01B", "quiet")):
            run.notifier.note(opened(on_mount(ident, job)))
        await run.wait_for(1)
        run.silenced.add("quiet")
        run.notifier.note(updated(on_mount("01A", "llama", rank=5)))
        second = (await run.wait_for(2))[1]
        assert len(second["alerts"]) == 2
        run.silenced.add("llama")
        run.notifier.note(updated(on_mount("01A", "llama", rank=6)))
        await run.settle()
        assert len(receiver.accepted) == 2
        for ident, job in (("01A", "llama"), ("01B", "quiet")):
            run.notifier.note(closed(on_mount(ident, job)))
        last = (await run.wait_for(3))[2]
        assert last["status"] == "resolved"

    tell(story)


def test_the_outage_of_a_drill_is_marked_as_a_drill():
    alerts = [
        make_alert(opened(on_mount(ident, ident)), NO_LINKS, None, is_drill=True)
        for ident in ("01A", "01B")
    ]
    message = message_of(*alerts)
    assert message.labels["alertname"] == "WatchtowerDrill"
    assert message.labels["severity"] == "info"
    assert message.lines[0].startswith("[DRILL] [OUTAGE]")
    assert message.lines[-1].startswith("This is a drill: do nothing.")


def test_an_alert_whose_delivery_began_before_a_kill_and_a_silence_ends(tell, receiver):
    async def story(run: Run) -> None:
        await run.save(an_incident())
        receiver.reply_delay_s = 3.0
        run.notifier.note(opened(an_incident()))
        await run.wait_for(1)  # accepted, and the tower does not know it
        run.silenced.add("llama")
        await run.restart()
        receiver.reply_delay_s = 0.0
        run.notifier.note(closed(an_incident()))
        await run.wait_for(2)
        assert receiver.accepted[1]["status"] == "resolved"

    tell(story)
