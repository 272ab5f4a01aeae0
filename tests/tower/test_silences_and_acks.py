"""Silences and acknowledgements over the API: bounded, stored, shown in lists and metrics."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.core.detection.scenes import JOB
from tests.diagnosers import InThread
from tests.tower.simulator import Simulation, hang
from tests.tower.test_api import assert_problem, recorded
from watchtower.app import make_app
from watchtower.core.policy import Policy
from watchtower.store.sqlite import SqliteStore
from watchtower.store.values import Silence
from watchtower.tower.clock import Clock
from watchtower.tower.history import get_incident, list_incidents
from watchtower.tower.incident_events import Change
from watchtower.tower.silences import MAX_SILENCES
from watchtower.tower.tower import Tower
from watchtower.tower.views import view_job


@pytest.fixture
def store(tmp_path: Path):
    store = SqliteStore(tmp_path / "watchtower.db")
    yield store
    store.close()


@pytest.fixture
def client(store):
    with TestClient(make_app(Tower(Policy(), store, store.recall(), Clock(), InThread))) as client:
        client.post("/ingest/v1/report", content=recorded("report.json"))
        yield client


def test_a_silenced_job_is_shown_as_silenced_everywhere_and_after_a_restart(client, store):
    answer = client.post("/api/v1/jobs/llama-70b/mute", json={"for_s": 60, "reason": "drill"})
    assert answer.status_code == 200
    assert answer.json()["reason"] == "drill"
    assert client.get("/api/v1/jobs/llama-70b").json()["mute"] == answer.json()
    assert client.get("/api/v1/jobs").json()["items"][0]["muted_until"] == answer.json()["until"]
    assert 'watchtower_job_muted{training_job="llama-70b"} 1.0' in client.get("/metrics").text
    (kept,) = store.recall().silences
    assert (kept.job, kept.reason) == ("llama-70b", "drill")


def test_a_job_that_is_no_longer_silenced_alerts_again(client, store):
    client.post("/api/v1/jobs/llama-70b/mute", json={"for_s": 60})
    assert client.delete("/api/v1/jobs/llama-70b/mute").status_code == 200
    assert client.get("/api/v1/jobs/llama-70b").json()["mute"] is None
    assert 'watchtower_job_muted{training_job="llama-70b"} 0.0' in client.get("/metrics").text
    assert store.recall().silences == ()
    assert_problem(client.delete("/api/v1/jobs/llama-70b/mute"), 404, "are not silenced")


def test_a_job_that_does_not_exist_yet_can_be_silenced(client):
    assert client.post("/api/v1/jobs/to%2Fcome/mute", json={"for_s": 60}).status_code == 200
    assert [one["job"] for one in client.get("/api/v1/mutes").json()["items"]] == ["to/come"]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"for_s": 0}, "`for_s` is 0, allowed is 1 to"),
        ({"for_s": -1}, "`for_s`"),
        ({"for_s": 1e9}, "`for_s`"),
        ({}, "`for_s`"),
        ({"for_s": 5, "reason": "x" * 2000}, "`reason` has 2000 characters"),
    ],
)
def test_a_silence_beyond_its_limits_is_refused(client, body, word):
    assert_problem(client.post("/api/v1/jobs/llama-70b/mute", json=body), 422, word)


def test_silences_are_bounded_and_past_ones_are_dropped(tmp_path):
    store = SqliteStore(tmp_path / "watchtower.db")
    startup = store.recall()
    silences = tuple(Silence(job=f"j{n}", since=0.0, until=4e9) for n in range(MAX_SILENCES))
    full = Tower(Policy(), store, startup, Clock(), InThread)
    full.silences._by_job = {silence.job: silence for silence in silences}
    with TestClient(make_app(full)) as client:
        assert_problem(client.post("/api/v1/jobs/x/mute", json={"for_s": 9}), 422, "1000 jobs")
        full.silences._by_job["j1"] = Silence(job="j1", since=0.0, until=1.0)
        assert client.post("/api/v1/jobs/x/mute", json={"for_s": 9}).status_code == 200
    store.close()


def test_an_incident_that_is_not_there_cannot_be_acknowledged(client):
    assert_problem(client.post("/api/v1/incidents/01A/ack", json={}), 404, "no incident '01A'")
    body = {"by": "x" * 300}
    assert_problem(client.post("/api/v1/incidents/01A/ack", json=body), 422, "`by`")


def test_an_ack_stays_with_its_incident_through_updates_and_a_restart(tmp_path):
    async def story() -> None:
        sim = Simulation(tmp_path / "watchtower.db")
        await hang(sim)
        ident = sim.verdict.incident
        await sim.tower.acks.ack(ident, "ann", "on it", sim.tower.live.values())
        assert sim.live.incident.ack
        await sim.report(6)
        await sim.restart_tower()
        await sim.report(6)
        assert sim.live.incident.ack
        (summary,) = await list_incidents(sim.tower, JOB, 10)
        assert (summary.ack.by, summary.ack.note) == ("ann", "on it")
        assert (await get_incident(sim.tower, ident)).ack == summary.ack
        await sim.step(4)
        assert sim.live.incident.closed_at is not None
        assert (await list_incidents(sim.tower, JOB, 10))[0].ack == summary.ack
        await sim.close()

    asyncio.run(story())


def test_a_silence_ends_by_itself_and_changes_nothing_else(tmp_path):
    async def story() -> None:
        sim = Simulation(tmp_path / "watchtower.db")
        await sim.step(1)
        await sim.tower.silences.add(JOB, 60, "")
        await hang(sim)
        assert view_job(sim.tower, JOB).mute is not None
        assert len(await sim.incidents()) == 1
        await sim.report(60)
        assert view_job(sim.tower, JOB).mute is None
        await sim.close()

    asyncio.run(story())


def test_an_ack_is_shown_while_the_incident_waits_to_be_written_again(tmp_path):
    async def story() -> None:
        sim = Simulation(tmp_path / "watchtower.db")
        await hang(sim)
        incident = sim.live.incident
        sim.tower.feed.publish(Change.OPENED, incident)
        await sim.tower.acks.ack(incident.id, "ann", "", sim.tower.live.values())
        (listed,) = await list_incidents(sim.tower, JOB, 10)
        assert listed.ack.by == "ann"
        await sim.report(1)
        (stored,) = await sim.incidents()
        assert stored.ack.by == "ann"
        await sim.close()

    asyncio.run(story())
