"""When the job's own timeout expires: one time, which the incident keeps."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.tower.simulator import Simulation, hang
from watchtower.alerts.alert import describe_incident
from watchtower.incidents.incident import JobFacts
from watchtower.jobs.verdicts import DiagnosisResult


def test_the_end_of_the_own_timeout_of_a_job_is_one_moment_on_every_surface(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        diagnosis = replace(sim.live.watch.diagnosis, collective_timeout_s=600.0)
        sim.live.take_diagnosis(DiagnosisResult(diagnosis=diagnosis, evidence=None), 0.0, 0.0)
        wall = sim.tower.clock.wall()
        sim.live.update_incident(sim.world.now, wall)
        at = wall - sim.verdict.stalled_for_s + 600
        incident = sim.live.incident
        assert incident.facts.timeout_at == pytest.approx(at, abs=0.1)
        page = describe_incident(incident)
        assert page.timeout_at == incident.facts.timeout_at
        assert "should end it at about" in sim.verdict.kill.timeout_text
        await asyncio.wrap_future(sim.store.save_incident(incident))
        judgement = sim.live
        await sim.restart_tower()
        stored = await asyncio.wrap_future(sim.store.incident(incident.id, with_case=False))
        assert stored.facts.timeout_at == incident.facts.timeout_at
        earlier_release = replace(stored, facts=JobFacts())
        judgement.resume(earlier_release, sim.world.now, wall)
        assert judgement.incident.facts.timeout_at == pytest.approx(at, abs=0.1)

    tell(story)
