"""Shadow mode: incidents are counted, listed and marked, and nothing alerts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.jobs.scenes import JOB
from tests.tower.simulator import Simulation, hang
from tests.tower.test_incident_events import listen
from watchtower.alerts.alert import is_wanted
from watchtower.api.metrics import TowerCollector
from watchtower.api.security import Refusals
from watchtower.incidents.incident import ShadowMode
from watchtower.incidents.incident_filter import IncidentFilter
from watchtower.jobs.effects import IncidentUpdated
from watchtower.tower.stored_incidents import get_incident, list_incidents
from watchtower.wire.verdict import Cause

Tell = Callable[..., None]

EVERYTHING = ShadowMode(everything=True)


async def begin(sim: Simulation, shadow: ShadowMode) -> None:
    sim.shadow = shadow
    await sim.restart_tower()


def value(sim: Simulation, name: str, **labels: str) -> float | None:
    """The sum of the samples of a metric with these labels; None if there are none."""
    families = TowerCollector(sim.tower, Refusals()).collect()
    found = [
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return sum(found) if found else None


def test_incidents_of_shadow_mode_are_counted_listed_and_have_no_alert(tell: Tell):
    async def story(sim: Simulation) -> None:
        sim.shadow = EVERYTHING
        recording = await listen(sim)
        await hang(sim)
        (listed,) = (await list_incidents(sim.tower, IncidentFilter(job=JOB), 10)).items
        assert listed.shadow
        assert (await get_incident(sim.tower, listed.id)).shadow
        assert not any(map(is_wanted, recording.events))
        assert value(sim, "watchtower_incident_open") is None
        assert value(sim, "watchtower_shadow_incident_open", training_job=JOB, kind="hung") == 1
        assert value(sim, "watchtower_shadow_incidents_total") == 1
        assert value(sim, "watchtower_incidents_total") == 0
        assert value(sim, "watchtower_incident_info") == 1
        assert value(sim, "watchtower_job_shadow") == 1
        await sim.restart_tower()
        await sim.report(5)
        assert sim.live.incident.shadow
        await sim.step(4)
        assert value(sim, "watchtower_incident_open") is None
        assert value(sim, "watchtower_shadow_incident_open") is None
        assert not any(map(is_wanted, recording.events))

    tell(story)


def test_an_incident_that_is_still_open_alerts_when_shadow_mode_is_turned_off(tell: Tell):
    async def story(sim: Simulation) -> None:
        await begin(sim, EVERYTHING)
        await hang(sim)
        assert sim.live.incident.shadow
        await begin(sim, ShadowMode())
        await sim.report(5)
        assert not sim.live.incident.shadow
        assert value(sim, "watchtower_incident_open") == 1
        assert value(sim, "watchtower_shadow_incident_open") is None

    tell(story)


def test_an_alert_that_fires_does_not_end_when_shadow_mode_is_turned_on(tell: Tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        await begin(sim, EVERYTHING)
        await sim.report(5)
        await sim.dump(behind=1)
        await sim.report(5)
        assert value(sim, "watchtower_incident_open") == 1

    tell(story)


def test_a_verdict_corrected_to_another_cause_leaves_shadow_mode_for_good(tell: Tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        cause = sim.verdict.cause
        await sim.step(30)
        sim.shadow = ShadowMode(causes=frozenset({cause}))
        recording = await listen(sim)
        await sim.step(10)
        await hang(sim)
        assert sim.live.incident.shadow
        assert value(sim, "watchtower_shadow_incidents_total", cause=cause.value) == 1

        correct(sim, Cause.GIL_HELD)
        assert not sim.live.incident.shadow
        assert is_wanted(recording.events[-1]), "the alert is sent now"
        assert value(sim, "watchtower_incidents_total", cause="gil_held") == 1
        assert value(sim, "watchtower_incident_open") == 1

        correct(sim, cause)
        assert not sim.live.incident.shadow, "an alert that fires must not end by a correction"
        await sim.restart_tower()
        await sim.report(5)
        assert value(sim, "watchtower_incident_open") == 1

    tell(story)


def correct(sim: Simulation, cause: Cause) -> None:
    """Correct the verdict of the open incident, as a later diagnosis would."""
    live, now = sim.live, sim.tower.clock.now()
    live.watch.diagnosis = replace(live.watch.diagnosis, cause=cause)
    sim.tower.effects.carry_out(sim.tower.fleet.jobs[JOB], [IncidentUpdated()], now)


def test_a_cause_that_is_not_in_shadow_mode_alerts(tell: Tell):
    async def story(sim: Simulation) -> None:
        await begin(sim, ShadowMode(causes=frozenset({Cause.STRAGGLER})))
        await hang(sim)
        assert not sim.live.incident.shadow
        assert value(sim, "watchtower_incident_open") == 1
        assert value(sim, "watchtower_shadow_incidents_total") == 0
        assert value(sim, "watchtower_job_shadow") == 0

    tell(story)


def test_shadow_mode_is_described_in_one_line():
    assert ShadowMode().describe() == ""
    assert EVERYTHING.describe() == (
        "shadow mode is on: incidents are listed and counted, and no alert is sent"
    )
    causes = ShadowMode(causes=frozenset({Cause.STRAGGLER, Cause.GIL_HELD}))
    assert causes.describe().startswith("shadow mode is on for gil_held, straggler: ")
