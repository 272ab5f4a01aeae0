"""From incident events to a webhook: a real store, real HTTP, real time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.alerts.receivers import Receiver, receiving
from tests.tower.test_failing_store import no_room
from watchtower.alerts.destinations.webhook import Webhook
from watchtower.alerts.notifier import AlertNotifier
from watchtower.store.sqlite import SqliteStore
from watchtower.store.values import Ack, Incident
from watchtower.tower.clock import Clock
from watchtower.tower.incident_events import Change, IncidentEvent
from watchtower.tower.job_facts import JobFacts
from watchtower.tower.live import close
from watchtower.wire.verdict import Cause, Status, Suspect, Verdict

JOB = JobFacts(ranks=8, user="alice", dumps_in=8, dumps_wanted=8, checkpoint_step=1200)


def an_incident(ident: str = "01A", job: str = "llama", rank: int = 3) -> Incident:
    suspect = Suspect(
        rank=rank, node="gpu-1", cause=Cause.DATALOADER_STALL, why="Is in `read` at data.py:26."
    )
    verdict = Verdict(
        job=job,
        generation=1,
        status=Status.HUNG,
        summary="",
        cause=Cause.DATALOADER_STALL,
        confidence=0.9,
        suspects=(suspect,),
        waiting="0-2,4-7",
    )
    wall = Clock().wall()
    return Incident(
        id=ident,
        job=job,
        generation=1,
        status=Status.HUNG,
        opened_at=wall,
        updated_at=wall,
        verdict=verdict,
    )


def opened(incident: Incident) -> IncidentEvent:
    return IncidentEvent(change=Change.OPENED, incident=incident, job=JOB, sharer="a")


def updated(incident: Incident) -> IncidentEvent:
    return IncidentEvent(change=Change.UPDATED, incident=incident, job=JOB, sharer="a")


def closed(incident: Incident, status: Status = Status.RECOVERED) -> IncidentEvent:
    done = close(incident, status, Clock().wall())
    return IncidentEvent(change=Change.CLOSED, incident=done, job=JOB, sharer="a")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


Story = Callable[["Run"], Awaitable[None]]


class Run:
    """A notifier with a store, which a story may restart."""

    def __init__(self, path: Path, receiver: Receiver) -> None:
        self.path, self.receiver = path, receiver
        self.silenced: set[str] = set()
        self.begin()

    @property
    def stored(self) -> dict[str, tuple[int, int]]:
        """Version and delivered version of each stored alert."""
        with contextlib.closing(sqlite3.connect(self.path)) as db:
            rows = db.execute("SELECT incident, version, delivered FROM alerts").fetchall()
            return {ident: (version, delivered) for ident, version, delivered in rows}

    def begin(self) -> None:
        self.store = SqliteStore(self.path)
        startup = self.store.recall()
        self.notifier = AlertNotifier([Webhook(self.receiver.url)], self.store, Clock())
        self.notifier.recall(startup.alerts, startup.incidents)
        self.notifier.start(self.silenced.__contains__)

    async def end(self) -> None:
        await self.notifier.close()
        self.store.close()

    async def restart(self) -> None:
        await asyncio.wrap_future(self.store.probe())  # what was begun before is written
        await self.end()
        self.begin()

    async def save(self, incident: Incident) -> None:
        await asyncio.wrap_future(self.store.save_incident(incident))

    async def wait_for(self, count: int) -> list[dict]:
        return await asyncio.to_thread(self.receiver.wait_for, count)

    async def wait_for_requests(self, count: int) -> None:
        await asyncio.to_thread(self.receiver.wait_for_requests, count)

    async def settle(self) -> None:
        """Wait until nothing is to be sent, and everything is written."""
        (sender,) = self.notifier.senders.values()
        while sender.outbox.count_waiting():
            await asyncio.sleep(0.01)
        await asyncio.wrap_future(self.store.probe())


def tell(story: Story, path: Path, receiver: Receiver) -> None:
    async def work() -> None:
        run = Run(path / "watchtower.db", receiver)
        try:
            await asyncio.wait_for(story(run), 40)
        finally:
            await run.end()

    asyncio.run(work())


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


@pytest.mark.parametrize("status", [500, 503, 429, 404, 301])
def test_a_destination_that_refuses_gets_the_alert_when_it_accepts_again(
    tmp_path: Path, receiver: Receiver, status: int
):
    async def story(run: Run) -> None:
        receiver.status = status
        await run.save(an_incident())
        run.notifier.note(opened(an_incident()))
        await run.wait_for_requests(1)
        receiver.status = 200
        await run.restart()  # also ends the long wait after a refusal
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
        acked = replace(incident, ack=Ack(at=1.0, by="ann"))
        event = IncidentEvent(change=Change.ACKNOWLEDGED, incident=acked)
        run.notifier.note(event)
        await run.wait_for(2)
        notes = receiver.accepted[1]["alerts"][0]["annotations"]
        assert notes["state"] == "acked"
        assert "acknowledged by ann" in notes["summary"]
        assert "alice" in notes["summary"]  # known from the event before

    tell(story, tmp_path, receiver)


def test_a_version_is_stored_before_it_is_sent(tmp_path: Path, receiver: Receiver):
    """Else a killed tower could send another text under a version that a receiver already has."""

    async def story(run: Run) -> None:
        receiver.delay_s = 0.3
        run.notifier.note(opened(an_incident()))
        await run.wait_for_requests(1)
        assert run.stored == {"01A": (1, 0)}
        run.notifier.note(updated(an_incident(rank=5)))
        await run.wait_for_requests(2)
        assert run.stored == {"01A": (2, 1)}

    tell(story, tmp_path, receiver)


def test_a_silence_is_known_before_the_alerts_of_open_incidents_are_sent(
    tmp_path: Path, receiver: Receiver
):
    async def story(run: Run) -> None:
        run.silenced.add("quiet")
        for incident in (an_incident("01Q", "quiet"), an_incident("01L", "loud")):
            await run.save(incident)
        await run.restart()
        await run.wait_for(1)
        await asyncio.sleep(0.2)
        assert receiver.keys == ["01L:1"]

    tell(story, tmp_path, receiver)


def test_an_alert_ends_if_its_incident_is_not_in_the_store(tmp_path: Path, receiver: Receiver):
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

    tell(story, tmp_path, receiver)


def test_alerts_are_sent_while_the_disk_is_full_and_stored_later(
    tmp_path: Path, receiver: Receiver
):
    async def story(run: Run) -> None:
        with no_room():
            run.notifier.note(opened(an_incident("01A")))
            run.notifier.note(opened(an_incident("01B")))
            await run.wait_for(2)
            await asyncio.sleep(0.2)
        while run.stored != {"01A": (1, 1), "01B": (1, 1)}:
            await asyncio.sleep(0.05)

    tell(story, tmp_path, receiver)


def test_the_end_is_not_before_the_start_if_the_wall_clock_jumps(
    tmp_path: Path, receiver: Receiver
):
    async def story(run: Run) -> None:
        incident = an_incident()
        done = close(incident, Status.RECOVERED, incident.opened_at - 86_400)
        run.notifier.note(opened(incident))
        await run.wait_for(1)
        run.notifier.note(IncidentEvent(change=Change.CLOSED, incident=done, job=JOB, sharer="a"))
        await run.wait_for(2)
        end = receiver.alerts[1]
        assert end["endsAt"] == end["startsAt"]

    tell(story, tmp_path, receiver)


def test_hostile_names_and_texts_stay_in_their_places(tmp_path: Path, receiver: Receiver):
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

    tell(story, tmp_path, receiver)


def test_the_alert_of_one_owner_does_not_wait_for_300_of_another(
    tmp_path: Path, receiver: Receiver
):
    async def story(run: Run) -> None:
        for number in range(300):
            run.notifier.note(replace(opened(an_incident(f"m{number}")), sharer="many"))
        await run.wait_for(30)  # all that may be sent at once
        began = time.monotonic()
        run.notifier.note(replace(opened(an_incident("one")), sharer="few"))
        while "one:1" not in receiver.keys:
            await asyncio.sleep(0.01)
        assert time.monotonic() - began < 5
        assert len(receiver.keys) < 40

    tell(story, tmp_path, receiver)


def test_a_receiver_that_never_answers_delays_no_other_destination(
    tmp_path: Path, receiver: Receiver
):
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
            assert senders["stuck"].outbox.count_waiting() == 20
            assert senders["webhook"].outbox.count_waiting() == 0

    tell(story, tmp_path, receiver)
