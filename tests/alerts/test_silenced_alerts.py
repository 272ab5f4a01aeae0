"""What direct destinations receive about a silenced incident."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.alerts.notifying import Run, an_incident, closed, opened, tell, updated
from tests.alerts.receivers import Receiver


def test_a_silence_stops_changes_of_an_alert_and_its_end_is_sent(
    tmp_path: Path, receiver: Receiver
):
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

    tell(story, tmp_path, receiver)


def test_the_current_text_is_sent_when_the_silence_ends(tmp_path: Path, receiver: Receiver):
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

    tell(story, tmp_path, receiver)


def test_an_alert_that_waits_for_its_destination_can_be_silenced(
    tmp_path: Path, receiver: Receiver
):
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

    tell(story, tmp_path, receiver)


def test_an_incident_that_ends_just_after_its_silence_has_no_alert(
    tmp_path: Path, receiver: Receiver
):
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

    tell(story, tmp_path, receiver)


def test_a_silenced_alert_does_not_count_as_waiting(tmp_path: Path, receiver: Receiver):
    async def story(run: Run) -> None:
        run.silenced.add("llama")
        run.notifier.note(opened(an_incident()))
        await run.settle()
        await asyncio.sleep(0.1)
        (outbox,) = run.notifier.outboxes().values()
        assert (outbox.count_waiting(), outbox.oldest_s(1e12)) == (0, 0.0)

    tell(story, tmp_path, receiver)


def test_thousands_of_silenced_incidents_do_not_block_the_tower(tmp_path: Path, receiver: Receiver):
    async def story(run: Run) -> None:
        run.silenced.add("llama")
        for number in range(3000):
            run.notifier.note(opened(an_incident(f"01{number}")))
        run.notifier.note(opened(an_incident("01L", "loud")))
        began = time.process_time()
        await run.wait_for(1)
        assert receiver.keys == ["01L:1"]
        assert time.process_time() - began < 3
        (outbox,) = run.notifier.outboxes().values()
        assert outbox.count_waiting() == 0

    tell(story, tmp_path, receiver)
