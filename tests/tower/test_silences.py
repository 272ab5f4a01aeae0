"""Silences and acknowledgements: what they apply to, and over the API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from tests.diagnosers import in_thread
from tests.jobs.scenes import JOB
from tests.tower.simulator import Simulation, hang
from tests.tower.test_api import assert_problem, recorded
from tests.tower.test_incident_identity import name_user
from watchtower.api.metrics import TowerCollector
from watchtower.api.security import Refusals
from watchtower.app import make_app
from watchtower.incidents.incident import Silence, SilenceKind
from watchtower.incidents.incident_filter import IncidentFilter
from watchtower.jobs.verdicts import find_only_node
from watchtower.policy import Policy
from watchtower.tower.acts import MAX_SILENCES
from watchtower.tower.clock import Clock
from watchtower.tower.incident_events import Change
from watchtower.tower.stored_incidents import get_incident, list_incidents
from watchtower.tower.tower import Tower
from watchtower.views.job import view_job
from watchtower.views.people import Subject, subject_of
from watchtower.wire.verdict import Cause, Status, Suspect, Verdict

Tell = Callable[..., None]


def is_silenced(sim: Simulation) -> bool:
    """Whether the metric of the open incident, from which rules make alerts, is 1."""
    families = TowerCollector(sim.tower, Refusals()).collect()
    (found,) = [one for one in families if one.name == "watchtower_incident_silenced"]
    ((sample),) = found.samples
    assert sample.labels == {"incident": sim.verdict.incident, "training_job": JOB}
    return bool(sample.value)


def test_a_silence_by_node_applies_if_all_suspects_are_on_it(tell: Tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, rank=2)
        node = sim.verdict.suspects[0].node
        await sim.tower.silences.add(Subject(node="another"), 600)
        assert not is_silenced(sim)
        await sim.tower.silences.add(Subject(node=node), 600, "new switch")
        assert is_silenced(sim)
        (listed,) = (await list_incidents(sim.tower, IncidentFilter(job=JOB), 10)).items
        assert (listed.silence.node, listed.silence.reason) == (node, "new switch")
        assert (await get_incident(sim.tower, listed.id)).silence == listed.silence
        assert view_job(sim.tower.moment(), JOB).silence is None, "the job itself is not silenced"
        await sim.restart_tower()
        await sim.report(5)
        assert is_silenced(sim)

    tell(story)


def test_a_node_that_only_has_ranks_of_the_job_does_not_silence_it(tell: Tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, rank=2)
        blamed = {suspect.node for suspect in sim.verdict.suspects}
        others = {one.node for one in view_job(sim.tower.moment(), JOB).nodes} - blamed
        assert others
        for node in others:
            await sim.tower.silences.add(Subject(node=node), 600)
        assert not is_silenced(sim)

    tell(story)


def test_a_silence_by_node_applies_to_a_job_that_this_node_slows_down(tell: Tell):
    async def story(sim: Simulation) -> None:
        await sim.step(12)
        await sim.step(4, step_s=3.0)
        nodes = [one.node for one in view_job(sim.tower.moment(), JOB).nodes]
        for node in nodes:
            await sim.tower.silences.add(Subject(node=node), 600)
        assert view_job(sim.tower.moment(), JOB).silence is None, "no rank is named yet"
        for _ in range(6):
            await sim.dump(behind=2)
            await sim.step(3, step_s=3.0)
        blamed = sim.verdict.suspects[0].node
        assert view_job(sim.tower.moment(), JOB).silence.node == blamed
        await sim.step(12)
        assert view_job(sim.tower.moment(), JOB).silence is None

    tell(story)


def test_a_corrected_verdict_ends_the_silence_of_a_node_for_good(tell: Tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, rank=2)
        first = sim.verdict.suspects[0].node
        await sim.tower.silences.add(Subject(node=first), 6000)
        assert is_silenced(sim)
        await sim.dump(behind=1)
        await sim.report(5)
        assert [suspect.node for suspect in sim.verdict.suspects] != [first]
        assert not is_silenced(sim)
        await sim.dump(behind=2)
        await sim.report(5)
        assert [suspect.node for suspect in sim.verdict.suspects] == [first]
        assert not is_silenced(sim), "an alert that fires must not end by a correction"
        await sim.kill_tower()
        await sim.report(20)
        assert not is_silenced(sim)

    tell(story)


def test_a_corrected_verdict_does_not_begin_a_silence(tell: Tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, rank=2)
        await sim.dump(behind=1)
        await sim.report(5)
        second = sim.verdict.suspects[0].node
        await sim.tower.silences.add(Subject(node=second), 600)
        assert not is_silenced(sim)

    tell(story)


def test_a_silence_by_user_applies_to_the_user_at_the_opening(tell: Tell):
    async def story(sim: Simulation) -> None:
        await sim.step(1)
        name_user(sim, "alice")
        await hang(sim, rank=2)
        name_user(sim, "mallory")
        await sim.tower.silences.add(Subject(user="mallory"), 600)
        assert not is_silenced(sim)
        await sim.tower.silences.add(Subject(user="alice"), 600)
        assert is_silenced(sim)
        await sim.restart_tower()
        await sim.report(5)
        assert is_silenced(sim)

    tell(story)


def test_the_silence_of_a_user_is_shown_with_the_jobs_of_this_user(tell: Tell):
    async def story(sim: Simulation) -> None:
        await sim.step(1)
        name_user(sim, "alice")
        await sim.tower.silences.add(Subject(user="alice"), 600)
        assert view_job(sim.tower.moment(), JOB).silence.user == "alice"
        name_user(sim, "bob")
        assert view_job(sim.tower.moment(), JOB).silence is None

    tell(story)


def test_the_longest_of_several_silences_counts(tell: Tell):
    async def story(sim: Simulation) -> None:
        silences, subject = sim.tower.silences, Subject(job=JOB, node="n0", user="alice")
        await silences.add(Subject(job=JOB), 60)
        await silences.add(Subject(user="alice"), 600)
        longest = silences.find(subject)
        assert longest.name == "alice"
        assert await silences.remove(longest.id) == longest
        assert silences.find(subject).name == JOB

    tell(story)


def test_a_name_silences_only_what_it_names(tell: Tell):
    async def story(sim: Simulation) -> None:
        await sim.tower.silences.add(Subject(node=JOB), 600)
        assert sim.tower.silences.find(Subject(job=JOB, user=JOB)) is None
        assert sim.tower.silences.find(Subject()) is None

    tell(story)


def test_suspects_on_several_nodes_or_none_have_no_node():
    first, second = suspect(1, "a"), suspect(2, "b")
    verdict = Verdict(job=JOB, generation=1, status=Status.HUNG, summary="", suspects=())
    assert find_only_node(verdict.suspects) == ""
    assert find_only_node((first, replace(first, rank=3))) == "a"
    assert find_only_node((first, second)) == ""


def suspect(rank: int, node: str) -> Suspect:
    return Suspect(rank=rank, node=node, cause=Cause.UNKNOWN, why="")


def test_an_incident_that_named_several_nodes_has_no_node(tell: Tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        assert subject_of(replace(sim.live.incident, only_node="")).node == ""
        await sim.tower.silences.add(Subject(node=sim.verdict.suspects[0].node), 600)
        sim.live.incident = replace(sim.live.incident, only_node="")
        assert not is_silenced(sim)

    tell(story)


@pytest.fixture
def client(client):
    client.post("/ingest/v1/report", content=recorded("report.json"))
    return client


URL = "/api/v1/silences"


def silence_job(client: TestClient, job: str = "llama-70b", **more: object):
    return client.post(URL, json={"job": job, "for_s": 60, **more})


def test_a_silenced_job_is_shown_as_silenced_everywhere_and_after_a_restart(client, store):
    answer = silence_job(client, reason="drill", by="bob")
    assert answer.status_code == 200
    assert (answer.json()["reason"], answer.json()["by"]) == ("drill", "bob")
    assert client.get("/api/v1/jobs/llama-70b").json()["silence"] == answer.json()
    assert client.get("/api/v1/jobs").json()["items"][0]["silenced_until"] == answer.json()["until"]
    assert 'watchtower_job_silenced{training_job="llama-70b"} 1.0' in client.get("/metrics").text
    (kept,) = store.recall().silences
    assert (kept.id, kept.kind, kept.name) == (answer.json()["id"], SilenceKind.JOB, "llama-70b")
    assert (kept.reason, kept.by) == ("drill", "bob")


@pytest.mark.parametrize("by", ["", "  "])
def test_an_empty_name_of_a_person_is_refused(client, by):
    assert_problem(silence_job(client, by=by), 422, "`by` must not be empty")
    assert_problem(
        client.post("/api/v1/incidents/01A/ack", json={"by": by}), 422, "`by` must not be empty"
    )
    assert client.get(URL).json()["items"] == []
    assert silence_job(client, by=None).json()["by"] == ""


def test_a_job_that_is_no_longer_silenced_alerts_again(client, store):
    ident = silence_job(client).json()["id"]
    assert client.delete(f"{URL}/{ident}").json()["job"] == "llama-70b"
    assert client.get("/api/v1/jobs/llama-70b").json()["silence"] is None
    assert 'watchtower_job_silenced{training_job="llama-70b"} 0.0' in client.get("/metrics").text
    assert store.recall().silences == ()
    assert_problem(client.delete(f"{URL}/{ident}"), 404, "there is no silence")


def test_what_is_not_known_yet_can_be_silenced(client):
    assert silence_job(client, "to/come").status_code == 200
    assert client.post(URL, json={"node": "gpu-042", "for_s": 60}).status_code == 200
    assert client.post(URL, json={"user": "alice", "for_s": 60}).status_code == 200
    items = client.get(URL).json()["items"]
    assert [[one["job"], one["node"], one["user"]] for one in items] == [
        ["to/come", None, None],
        [None, "gpu-042", None],
        [None, None, "alice"],
    ]


def test_a_second_silence_replaces_the_first_one_of_the_same_name_only(client, store):
    first = silence_job(client, "x").json()
    second = silence_job(client, "x", for_s=600).json()
    assert second["id"] == first["id"]
    assert second["until"] > first["until"]
    client.post(URL, json={"user": "x", "for_s": 60})
    assert [one["job"] for one in client.get(URL).json()["items"]] == ["x", None]
    assert len(store.recall().silences) == 2


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"job": "a", "for_s": 0}, "`for_s` is 0, allowed is 1 to"),
        ({"job": "a", "for_s": -1}, "`for_s`"),
        ({"job": "a", "for_s": 1e9}, "`for_s`"),
        ({"job": "a"}, "`for_s`"),
        ({"job": "a", "for_s": 5, "reason": "x" * 2000}, "`reason` has 2000 characters"),
        ({"node": "a" * 2000, "for_s": 5}, "`node` has 2000 characters"),
        ({"for_s": 5}, "exactly one of `job`, `node` and `user`"),
        ({"for_s": 5, "user": ""}, "exactly one of `job`, `node` and `user`"),
        ({"for_s": 5, "node": " \t"}, "`node` has only spaces: give the name of a node"),
        ({"for_s": 5, "job": "a", "user": "b"}, "exactly one of `job`, `node` and `user`"),
    ],
)
def test_a_silence_beyond_its_limits_is_refused(client, body, word):
    assert_problem(client.post(URL, json=body), 422, word)


def test_silences_are_bounded_and_past_ones_are_dropped(store):
    silences = tuple(a_silence(f"j{n}") for n in range(MAX_SILENCES))
    startup = replace(store.recall(), silences=silences)
    full = Tower(Policy(), store, startup, Clock(), in_thread)
    with TestClient(make_app(full)) as client:
        assert_problem(silence_job(client, "x"), 422, "1000 silences")
        full.silences._known[SilenceKind.JOB, "j1"] = a_silence("j1", until=1.0)
        assert silence_job(client, "x").status_code == 200


def a_silence(job: str, until: float = 4e9) -> Silence:
    return Silence(id=job, kind=SilenceKind.JOB, name=job, since=0.0, until=until)


def test_an_incident_that_is_not_there_cannot_be_acknowledged(client):
    assert_problem(client.post("/api/v1/incidents/01A/ack", json={}), 404, "no incident '01A'")
    body = {"by": "x" * 300}
    assert_problem(client.post("/api/v1/incidents/01A/ack", json=body), 422, "`by`")


def test_an_ack_stays_with_its_incident_through_updates_and_a_restart(tmp_path):
    async def story() -> None:
        sim = Simulation(tmp_path / "watchtower.db")
        await hang(sim)
        ident = sim.verdict.incident
        await sim.tower.acks.ack(ident, "ann", "on it")
        assert sim.live.incident.ack
        await sim.report(6)
        await sim.restart_tower()
        await sim.report(6)
        assert sim.live.incident.ack
        (summary,) = (await list_incidents(sim.tower, IncidentFilter(job=JOB), 10)).items
        assert (summary.ack.by, summary.ack.note) == ("ann", "on it")
        assert (await get_incident(sim.tower, ident)).ack == summary.ack
        await sim.step(4)
        assert sim.live.incident.closed_at is not None
        assert (await list_incidents(sim.tower, IncidentFilter(job=JOB), 10)).items[
            0
        ].ack == summary.ack
        await sim.close()

    asyncio.run(story())


def test_a_silence_ends_by_itself_and_changes_nothing_else(tmp_path):
    async def story() -> None:
        sim = Simulation(tmp_path / "watchtower.db")
        await sim.step(1)
        await sim.tower.silences.add(Subject(job=JOB), 60)
        await hang(sim)
        assert view_job(sim.tower.moment(), JOB).silence is not None
        assert len(await sim.incidents()) == 1
        await sim.report(60)
        assert view_job(sim.tower.moment(), JOB).silence is None
        await sim.close()

    asyncio.run(story())


def test_an_ack_is_shown_while_the_incident_waits_to_be_written_again(tmp_path):
    async def story() -> None:
        sim = Simulation(tmp_path / "watchtower.db")
        await hang(sim)
        incident = sim.live.incident
        sim.tower.feed.publish(Change.OPENED, incident)
        await sim.tower.acks.ack(incident.id, "ann", "")
        (listed,) = (await list_incidents(sim.tower, IncidentFilter(job=JOB), 10)).items
        assert listed.ack.by == "ann"
        await sim.report(1)
        (stored,) = await sim.incidents()
        assert stored.ack.by == "ann"
        await sim.close()

    asyncio.run(story())
