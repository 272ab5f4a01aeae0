"""The summary of a case: beside the diagnosis, in the store, and in the answers of the API."""

import asyncio
import sqlite3
from xml.etree import ElementTree

from starlette.testclient import TestClient

from tests.jobs.scenes import JOB
from tests.tower.simulator import Simulation
from watchtower.app import make_app
from watchtower.tower.stored_incidents import find_job_summary, get_incident, read_summary
from watchtower.views import rank
from watchtower.views.case_summary import CELL_BYTES, STATES, RankState

SVG = "{http://www.w3.org/2000/svg}"


async def hang(sim: Simulation) -> None:
    await sim.step(10)
    await sim.report(6)
    await sim.dump(behind=2)
    await sim.report(1)


def states_of(cells: bytes) -> list[RankState]:
    return [STATES[cell] for cell in cells[::CELL_BYTES]]


def test_a_suspect_has_a_summary_and_its_incident_keeps_it(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        summary = await find_job_summary(sim.tower, JOB)
        assert summary is not None
        assert states_of(summary.ranks.cells)[2] is RankState.SUSPECT
        await sim.report(11)
        (incident,) = await sim.incidents()
        assert await read_summary(sim.tower, incident.id) == summary
        await sim.restart_tower()
        await sim.report(2)
        assert await read_summary(sim.tower, incident.id) == summary
        assert await find_job_summary(sim.tower, JOB) == summary

    tell(story)


def test_a_job_without_a_diagnosis_has_no_summary(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        assert await find_job_summary(sim.tower, JOB) is None
        assert await find_job_summary(sim.tower, "another") is None

    tell(story)


def test_the_stacks_of_an_incident_are_the_same_from_its_summary_and_from_its_case(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        await sim.report(11)
        (incident,) = await sim.incidents()
        detail = await get_incident(sim.tower, incident.id)
        assert [stack.ranks for stack in detail.stacks] == ["2", "0-1,3"]
        await asyncio.wrap_future(sim.store.write(remove_summaries))
        assert await read_summary(sim.tower, incident.id) is None
        assert (await get_incident(sim.tower, incident.id)).stacks == detail.stacks

    tell(story)


def remove_summaries(db: sqlite3.Connection) -> None:
    db.execute("DELETE FROM summaries")


def test_a_summary_stays_when_its_evidence_was_deleted(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        await sim.report(11)
        (incident,) = await sim.incidents()
        stacks = (await get_incident(sim.tower, incident.id)).stacks
        await asyncio.wrap_future(sim.store.write(lambda db: db.execute("DELETE FROM evidence")))
        assert (await get_incident(sim.tower, incident.id)).stacks == stacks

    tell(story)


def test_the_api_returns_every_rank_and_the_picture_of_an_incident(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        await sim.report(11)
        (incident,) = await sim.incidents()
        await asyncio.to_thread(ask, sim, f"/api/v1/incidents/{incident.id}")

    def ask(sim: Simulation, path: str) -> None:
        client = TestClient(make_app(sim.tower))
        ranks = client.get(f"{path}/ranks").json()
        assert [(each["node"], each["ranks"]) for each in ranks["node_ranks"]] == [
            ("n0", "0-1"),
            ("n1", "2-3"),
        ]
        assert ranks["groups"][0]["rank_set"] == {"text": "2", "count": 1, "is_whole": True}
        cells = client.get(f"{path}/ranks.bin")
        assert cells.headers["content-type"] == "application/octet-stream"
        assert len(cells.content) == CELL_BYTES * ranks["count"]
        assert ranks["states"][cells.content[2 * CELL_BYTES]] == "suspect"
        evidence = client.get(f"{path}/evidence").json()
        assert evidence["contrast"]["rank"] == 2
        picture = client.get(f"{path}/graph.svg")
        assert picture.headers["content-type"] == "image/svg+xml"
        assert "sandbox" in picture.headers["content-security-policy"]
        root = ElementTree.fromstring(picture.content)
        assert root.attrib["role"] == "img"
        assert root.find(f"{SVG}desc").text == evidence["waits"]["sentence"]

    tell(story)


def test_an_incident_without_a_summary_has_no_picture(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        await sim.report(11)
        (incident,) = await sim.incidents()
        await asyncio.wrap_future(sim.store.write(remove_summaries))
        await asyncio.to_thread(ask, sim, incident.id)

    def ask(sim: Simulation, ident: str) -> None:
        client = TestClient(make_app(sim.tower))
        for name in ("ranks", "ranks.bin", "evidence", "graph.svg"):
            answer = client.get(f"/api/v1/incidents/{ident}/{name}")
            assert answer.status_code == 404
            assert "has no summary" in answer.json()["detail"]
        assert client.get("/api/v1/incidents/01ZZ/ranks").status_code == 404

    tell(story)


def test_the_grid_of_a_live_job_is_as_its_ranks_are_now(tell, monkeypatch):
    monkeypatch.setattr(rank, "FRESH_S", 0.0)

    async def story(sim: Simulation) -> None:
        await sim.step(10)
        grid = sim.tower.grids.find(sim.tower.moment(), JOB)
        assert set(states_of(grid.cells)) == {RankState.STEPPING}
        await sim.report(6)
        late = sim.tower.grids.find(sim.tower.moment(), JOB)
        assert set(states_of(late.cells)) == {RankState.LATE}
        await sim.dump(behind=2)
        sim.world.silent.add("n0")
        await sim.report(4)
        found = states_of(sim.tower.grids.find(sim.tower.moment(), JOB).cells)
        assert found[2:] == [RankState.SUSPECT, RankState.LATE]
        assert sim.tower.grids.find(sim.tower.moment(), "another") is None
        await asyncio.to_thread(ask, sim)

    def ask(sim: Simulation) -> None:
        client = TestClient(make_app(sim.tower))
        ranks = client.get(f"/api/v1/jobs/{JOB}/ranks").json()
        cells = client.get(f"/api/v1/jobs/{JOB}/ranks.bin").content
        assert len(cells) == CELL_BYTES * ranks["count"] == CELL_BYTES * 4
        assert client.get("/api/v1/jobs/another/ranks").status_code == 404
        assert client.get("/api/v1/jobs/another/ranks.bin").status_code == 404

    tell(story)


def test_a_grid_is_made_once_in_two_seconds(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        grid = sim.tower.grids.find(sim.tower.moment(), JOB)
        assert sim.tower.grids.find(sim.tower.moment(), JOB) is grid
        await sim.report(3)
        assert sim.tower.grids.find(sim.tower.moment(), JOB) is not grid

    tell(story)
