"""Agents that report without a live rank, such as an agent that was restarted with `--match`."""

from __future__ import annotations

from tests.tower.simulator import Simulation, hang
from tests.tower.test_aftermath import SUSPECT, assert_unchanged, kill, only_incident


def test_an_incident_stays_open_when_a_new_agent_no_longer_reports_its_live_ranks(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, SUSPECT)
        sim.restart_agent("n0")
        sim.restart_agent("n1")
        sim.world.hidden = {0, 1, 2, 3}
        await sim.report(120)
        assert sim.status == "hung"
        assert "no longer reported by the agent on n0, n1: ranks 0-3" in sim.live.watch.reason
        await assert_unchanged(sim)
        assert (await only_incident(sim)).closed_at is None

    tell(story)


def test_a_healthy_job_is_monitoring_lost_when_its_agent_reports_without_a_live_rank(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        sim.world.hidden = {1}
        await sim.step(60)
        assert sim.status == "monitoring_lost"
        assert await sim.incidents() == []
        sim.world.hidden = set()
        await sim.step(3)
        assert sim.status == "healthy"

    tell(story)


def test_ranks_that_an_agent_no_longer_reports_are_aftermath(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, SUSPECT)
        sim.restart_agent("n1")
        sim.world.hidden = {SUSPECT, 3}
        await sim.report(60)
        await assert_unchanged(sim)
        (group,) = sim.verdict.aftermath
        assert (group.ranks, group.text) == ("2-3", "no longer reported by the agent on n1")
        kill(sim, 0, 1, 2, 3)
        await sim.report(60)
        await assert_unchanged(sim)

    tell(story)
