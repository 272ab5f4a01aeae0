"""Jobs of two owners with one name in one tower: their verdicts, replies and dumps are separate."""

from __future__ import annotations

from tests.jobs.scenes import JOB, World
from tests.tower.simulator import Simulation
from watchtower.views.fleet import summarize_jobs
from watchtower.views.job import view_job
from watchtower.wire.orders import ReportReply
from watchtower.wire.report import Beat, RankVitals, Report

USER, OTHER = "uid:1000", "uid:2000"
THEIRS = f"{JOB}@{OTHER}"


def owned() -> World:
    world = World()
    for rank in world.ranks.values():
        rank.owner = USER
    return world


def attack(sim: Simulation, rank: int = 2, step: int = 5) -> ReportReply:
    """Report a process of another user that claims a rank of the job."""
    beat = Beat(step=step, age_s=0.0, advanced=1, interval_s=1.0)
    claim = RankVitals(
        job=JOB, rank=rank, pid=7, start_time=7, world_size=9, owner=OTHER, beat=beat, launched=True
    )
    return sim.tower.take_report(
        Report(version=1, node="n9", agent_id="n9", interval_s=1.0, ranks=(claim,))
    )


def test_a_hang_is_diagnosed_as_if_the_other_owner_s_job_were_not_there(tell):
    async def story(sim: Simulation) -> None:
        for _ in range(10):
            await sim.step(1)
            attack(sim)
        for _ in range(6):
            await sim.report(1)
            attack(sim)
        await sim.dump(behind=2)
        for _ in range(12):
            await sim.report(1)
            attack(sim)
        assert sim.status == "hung"
        assert [(s.rank, s.node) for s in sim.verdict.suspects] == [(2, "n1")]
        assert set(sim.tower.runner._brief._turns._places._use._used._used) == {USER}
        theirs = sim.tower.fleet.jobs[THEIRS].judged
        assert theirs.incident is None
        assert [(job.job, job.owner) for job in summarize_jobs(sim.tower.moment())] == [
            (JOB, USER),
            (THEIRS, OTHER),
        ]
        view = view_job(sim.tower.moment(), JOB)
        assert view is not None
        assert (view.owner, view.rivals, view.world_size) == (USER, [], 4)

    tell(story, owned())


def test_replies_name_a_job_as_its_agent_does(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(3)
        for step in range(10, 20):
            attack(sim, step=step)
            await sim.step(1)
        (deadline,) = attack(sim, step=30).deadlines
        assert (deadline.job, deadline.owner) == (JOB, OTHER)
        await sim.report(4)
        orders = sim.tower.effects.orders.collect(("n0", "n0"), sim.world.now)
        assert [(order.job, order.owner) for order in orders] == [(JOB, USER)]

    tell(story, owned())


def test_after_a_restart_each_owner_has_his_name_his_dumps_and_his_incident_again(tell):
    async def story(sim: Simulation) -> None:
        for _ in range(10):
            await sim.step(1)
            attack(sim)
        await sim.report(6)
        await sim.dump(behind=2)
        await sim.report(12)
        before = sim.verdict.incident
        await sim.restart_tower()
        attack(sim)  # it is there first
        await sim.report(2)
        assert {name: job.owner for name, job in sim.tower.fleet.jobs.items()} == {
            JOB: USER,
            THEIRS: OTHER,
        }
        assert (sim.status, sim.verdict.incident) == ("hung", before)
        assert sim.attempt.number == 1
        assert sim.attempt.ranks[2].dumps

    tell(story, owned())
