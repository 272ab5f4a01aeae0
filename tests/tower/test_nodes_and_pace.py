"""The tower when nodes or agents vanish, and when a job steps slowly."""

from __future__ import annotations

from dataclasses import replace

from tests.jobs.scenes import JOB
from tests.tower.simulator import Simulation
from watchtower.views.job import view_job
from watchtower.wire.observations import Observation
from watchtower.wire.report import EndingKind
from watchtower.wire.verdict import Cause


def test_a_node_that_vanishes_with_its_ranks_is_named_and_then_an_incident(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        sim.world.silent.add("n1")
        await sim.report(6)
        await sim.dump(behind=-1, nodes=("n0",))
        await sim.report(3)
        assert (sim.status, sim.verdict.cause) == ("suspect", Cause.NODE_LOST)
        assert [s.rank for s in sim.verdict.suspects] == [2, 3]
        await sim.report(12)
        (incident,) = await sim.incidents()
        assert incident.verdict.cause is Cause.NODE_LOST

    tell(story)


def test_a_lost_node_whose_peers_die_of_it_is_reported_at_the_end(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        sim.world.silent.add("n1")
        sim.world.end(0, EndingKind.SIGNAL, 6)
        sim.world.end(1, EndingKind.SIGNAL, 15)
        await sim.report(14)
        assert sim.status == "ended"
        (incident,) = await sim.incidents()
        assert incident.verdict.cause is not Cause.UNKNOWN

    tell(story)


def test_an_agent_that_dies_alone_is_lost_monitoring_and_no_incident(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        sim.world.silent.add("n1")
        await sim.step(30)
        assert sim.status == "monitoring_lost"
        assert await sim.incidents() == []
        sim.world.silent.clear()
        await sim.step(3)
        assert sim.status == "healthy"

    tell(story)


def test_a_slow_job_is_sampled_until_its_straggler_is_known(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(12)
        await sim.step(4, step_s=3.0)
        assert (sim.status, sim.verdict.cause) == ("slow", Cause.JOB_SLOW)
        for _ in range(6):
            await sim.dump(behind=2)
            await sim.step(3, step_s=3.0)
        assert (sim.status, sim.verdict.cause) == ("slow", Cause.STRAGGLER)
        assert [s.rank for s in sim.verdict.suspects] == [2]
        assert (sim.verdict.incident, sim.verdict.stalled_for_s) == (None, 0.0)
        await sim.step(12)
        assert (sim.status, sim.verdict.cause) == ("healthy", None)
        assert await sim.incidents() == []

    tell(story)


def test_a_job_whose_steps_are_broken_by_pauses_is_not_suspected_again_and_again(tell):
    async def story(sim: Simulation) -> None:
        seen = []
        for _ in range(12):
            await sim.step(6)
            await sim.report(24)
            seen.append(sim.status)
            await sim.step(1)
        assert (sim.status, seen[3:]) == ("healthy", ["healthy"] * 9)

    tell(story)


def test_a_job_of_other_long_steps_after_a_few_quick_ones_is_not_slow(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(5)
        await sim.step(20, step_s=20.0)
        assert sim.status == "healthy"

    tell(story)


def test_a_slow_job_shows_the_length_of_a_step_now_and_before(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(12)
        await sim.step(4, step_s=3.0)
        assert all(value in sim.live.watch.reason for value in ("3.0 times", "3 s", "1 s"))
        await sim.step(6, step_s=60.0)
        assert sim.live.watch.reason == (
            "steps now do another kind of work: one takes 60 s now, 1 s before"
        )

    tell(story)


def test_a_suspicion_is_still_shown_when_the_agents_stop_reporting(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        sim.world.ranks[2].cpu_cores = 1.0  # it works: more patience than a silent agent gets
        await sim.report(6)
        await sim.dump(behind=2)
        await sim.report(1)
        assert sim.status == "suspect"
        sim.world.silent = {"n0", "n1"}
        await sim.report(40)
        assert sim.status == "monitoring_lost"
        assert [suspect.rank for suspect in sim.verdict.suspects] == [2]
        assert (
            "no agent of this job reports; it was suspect: 4 ranks have not stepped"
            in (sim.verdict.missing_evidence[0])
        )

    tell(story)


def test_a_rank_has_the_number_of_the_gpu_that_its_process_uses(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(3)
        report = sim.world.make_report("n0", "n0", ())
        working = Observation(
            source="nvml",
            subject="pci:0000:3b:00",
            name="gpu_pattern.working",
            age_s=0.5,
            value=5,
            pid=sim.world.ranks[1].pid,
        )
        sim.tower.take_report(replace(report, observations=(working,)))
        view = view_job(sim.tower.moment(), JOB)
        assert view is not None
        assert [state.gpu for state in view.rank_states] == [None, 5, None, None]

    tell(story)
