"""Incidents with one shared cause are one outage: what the tower stores and returns of it."""

from __future__ import annotations

import time
from dataclasses import replace

import msgspec

from tests.diagnosis.builders import a_case, ranks_in
from tests.tower.simulator import Simulation
from tests.tower.test_shared_cause import MOUNT, Outage, scrape
from watchtower.commands.texts import _incidents_text, write_outages
from watchtower.diagnosis.diagnosis import diagnose
from watchtower.incidents.incident import Ack
from watchtower.incidents.incident_filter import ALL_INCIDENTS
from watchtower.tower.stored_incidents import get_incident, list_incidents
from watchtower.views.outage import list_outages
from watchtower.wire.verdict import Domain


def test_three_jobs_on_one_dead_mount_are_one_outage(tell):
    async def story(sim: Simulation) -> None:
        outage = Outage(sim, ["uid:1", "uid:2", "uid:3"])
        await outage.hang()
        (found,) = list_outages(sim.tower.moment(), 100)
        assert (found.shared_cause, found.domain) == (MOUNT, Domain.STORAGE)
        assert (found.open_count, found.rank_count, found.closed_at) == (3, 24, None)
        assert {one.job for one in found.incidents} == {"job-0", "job-1", "job-2"}
        assert found.id == found.incidents[0].id
        listed = (await list_incidents(sim.tower, ALL_INCIDENTS, 100)).items
        assert [one.outage for one in listed] == [found.id] * 3
        detail = await get_incident(sim.tower, listed[0].id)
        assert detail is not None
        assert detail.outage == found.id
        assert scrape(sim)["watchtower_outages"] == [({}, 1.0)]
        outage.jobs.hung_at = 0.0  # the server is back
        await outage.run(3)
        (over,) = list_outages(sim.tower.moment(), 100)
        assert over.open_count == 0
        assert over.closed_at is not None
        assert scrape(sim)["watchtower_outages"] == [({}, 0.0)]

    tell(story)


def test_an_outage_of_shadow_mode_is_listed_and_not_counted(tell):
    async def story(sim: Simulation) -> None:
        await Outage(sim, ["uid:1", "uid:2"]).hang()
        for live in [keeper.judged for keeper in sim.tower.fleet.jobs.values()]:
            assert live.incident is not None
            live.incident = replace(live.incident, shadow=True)
        assert len(list_outages(sim.tower.moment(), 100)) == 1
        assert scrape(sim)["watchtower_outages"] == [({}, 0.0)]

    tell(story)


def test_an_outage_shows_which_incidents_are_acknowledged(tell):
    async def story(sim: Simulation) -> None:
        await Outage(sim, ["uid:1", "uid:2"]).hang()
        live = sim.tower.fleet.jobs["job-1"].judged
        assert live.incident is not None
        live.incident = replace(live.incident, ack=Ack(at=1.0, by="ann"))
        (found,) = list_outages(sim.tower.moment(), 100)
        assert {one.job: one.acknowledged for one in found.incidents} == {
            "job-0": False,
            "job-1": True,
        }

    tell(story)


def test_a_job_that_hangs_alone_is_no_outage(tell):
    async def story(sim: Simulation) -> None:
        await Outage(sim, ["uid:1"]).hang()
        assert list_outages(sim.tower.moment(), 100) == []
        (one,) = (await list_incidents(sim.tower, ALL_INCIDENTS, 100)).items
        assert one.outage == one.id
        assert scrape(sim)["watchtower_outages"] == [({}, 0.0)]

    tell(story)


def test_an_outage_survives_a_restart_and_a_corrected_verdict(tell):
    async def story(sim: Simulation) -> None:
        outage = Outage(sim, ["uid:1"] * 3)
        await outage.hang()
        (before,) = list_outages(sim.tower.moment(), 100)
        for again in (sim.restart_tower, sim.kill_tower):
            await again()
            await outage.run(3)
            (after,) = list_outages(sim.tower.moment(), 100)
            assert replace(after, rank_count=24) == before
        live = sim.tower.fleet.jobs["job-0"].judged
        assert live.incident is not None
        live.watch.diagnosis = diagnose(a_case(ranks_in(4)))  # it names no mount
        live.update_incident(sim.world.now, 0.0)
        assert live.incident.identity.outage == before.id

    tell(story)


def test_drills_are_in_no_outage(tell, monkeypatch):
    monkeypatch.setattr("watchtower.jobs.keeper.is_drill", lambda _: True)

    async def story(sim: Simulation) -> None:
        await Outage(sim, ["uid:1"] * 2).hang()
        assert list_outages(sim.tower.moment(), 100) == []

    tell(story)


def test_the_commands_show_outages_and_which_incidents_belong_together(tell):
    async def story(sim: Simulation) -> None:
        await Outage(sim, ["uid:1"] * 5).hang()
        outages = msgspec.to_builtins(list_outages(sim.tower.moment(), 100))
        lines = write_outages(outages, time.time()).splitlines()
        assert lines[0].split()[:3] == ["OUTAGE", "OPENED", "STATUS"]
        assert "5 of 5 open" in lines[1]
        assert "mount nfs1:/data" in lines[1]
        assert "and 2 more" in lines[1]
        incidents = msgspec.to_builtins((await list_incidents(sim.tower, ALL_INCIDENTS, 100)).items)
        table = _incidents_text(incidents, time.time()).splitlines()
        assert table[0].endswith("OUTAGE")
        assert all(line.endswith(outages[0]["id"]) for line in table[1:])
        assert "OUTAGE" not in _incidents_text(incidents[:1], time.time())

    tell(story)
