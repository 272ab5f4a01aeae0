"""A restarted tower continues where it was: dumps, incident, attempt, end of the job."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from tests.jobs.scenes import JOB
from tests.tower.simulator import Simulation, hang
from watchtower.jobs.pace import Pause
from watchtower.wire.report import EndingKind
from watchtower.wire.verdict import Cause


def test_a_tower_restarted_in_the_middle_of_a_hang_goes_on_with_the_same_incident(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        before = sim.verdict
        await sim.restart_tower()
        await sim.report(1)
        assert sim.verdict.incident == before.incident
        assert sim.verdict.cause is Cause.DATALOADER_STALL
        assert sim.verdict.generation == before.generation
        assert sim.live.watch.status.value == "hung"
        assert [s.rank for s in sim.verdict.suspects] == [2]
        assert sim.verdict.stalled_for_s == before.stalled_for_s + 1
        await sim.report(15)
        assert sim.verdict.cause is Cause.DATALOADER_STALL
        assert [i.id for i in await sim.incidents()] == [before.incident]
        await sim.step(3)
        assert [i.status.value for i in await sim.incidents()] == ["recovered"]

    tell(story)


def test_dumps_that_were_acknowledged_are_evidence_after_a_restart_too(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.report(6)
        await sim.dump(behind=2)
        await sim.restart_tower()
        await sim.report(1)
        assert sim.status == "suspect"
        assert sim.verdict.cause is Cause.DATALOADER_STALL
        assert sim.live.context.dumps_have == 4
        assert sim.tower.effects.orders.collect(("n0", "n0"), sim.world.now) == ()
        taken_at = [at for at, _ in sim.tower.fleet.jobs[JOB].attempt.ranks[2].dumps]
        assert taken_at == pytest.approx([sim.world.now - 1] * 2)

    tell(story)


def test_dumps_that_come_before_the_first_report_are_evidence(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.report(6)
        await sim.restart_tower()
        await sim.dump(behind=2)
        await sim.report(1)
        assert sim.verdict.cause is Cause.DATALOADER_STALL

    tell(story)


def test_dumps_of_an_earlier_stall_are_not_read_back(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.dump(behind=2)
        await sim.step(3)
        await sim.restart_tower()
        await sim.report(4)
        assert sim.live.watch.is_checking
        assert sim.live.context.dumps_have == 0
        assert sim.tower.effects.orders.collect(("n0", "n0"), sim.world.now)

    tell(story)


def test_a_node_that_is_reported_late_after_a_restart_is_not_missing(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        before = sim.verdict
        await sim.restart_tower()
        sim.world.silent.add("n1")
        await sim.report(5)
        assert sim.verdict.suspects == before.suspects
        assert sim.live.watch.diagnosis is None
        sim.world.silent.clear()
        await sim.report(6)
        assert [s.rank for s in sim.verdict.suspects] == [2]
        assert sim.live.watch.diagnosis is not None

    tell(story)


def test_towers_that_are_killed_while_ranks_come_back_lose_no_rank(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        before = sim.verdict.incident
        for silent in ("n1", "n0", "n1", "n0"):
            await sim.restart_tower()
            sim.world.silent = {silent}
            await sim.report(1)
        sim.world.silent.clear()
        await sim.report(1)
        assert sim.live.attempt.number == 1
        assert sim.verdict.incident == before
        assert len(await sim.incidents()) == 1

    tell(story)


def test_a_dead_rank_that_is_not_reported_after_a_restart_stays_the_suspect(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        sim.world.end(3, EndingKind.SIGNAL, 9)
        await sim.report(20)
        assert sim.status == "hung"
        before = sim.verdict
        await sim.restart_tower()
        del sim.world.ranks[3]  # its agent was restarted too
        await sim.report(30)
        assert sim.live.watch.diagnosis is not None
        assert sim.verdict.cause is before.cause is Cause.PROCESS_DIED
        assert [s.rank for s in sim.verdict.suspects] == [3]
        assert sim.verdict.incident == before.incident

    tell(story)


def test_a_stall_in_a_phase_whose_pace_is_forgotten_has_not_recovered(tell):
    async def story(sim: Simulation) -> None:
        for rank in sim.world.ranks.values():
            rank.phase, rank.phase_at = "save", 0.0
        await hang(sim)
        await sim.restart_tower()
        await sim.report(20)
        assert sim.status == "hung"
        await sim.step(4)
        assert sim.status == "recovered"

    tell(story)


def test_the_end_of_a_job_is_reported_once_through_a_restart(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        sim.world.end(2, EndingKind.EXIT, 1)
        for rank in (0, 1, 3):
            sim.world.end(rank, EndingKind.SIGNAL, 15)
        await sim.report(4)
        assert len(await sim.incidents()) == 1
        for _ in range(2):
            await sim.restart_tower()
            await sim.report(5)
        assert sim.status == "ended"
        assert len(await sim.incidents()) == 1

    tell(story)


def test_a_job_that_died_while_the_tower_was_away_is_reported(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        sim.world.end(2, EndingKind.EXIT, 1)
        for rank in (0, 1, 3):
            sim.world.end(rank, EndingKind.SIGNAL, 15)
        sim.world.now += 60
        await sim.restart_tower()
        await sim.report(4)
        (incident,) = await sim.incidents()
        assert [s.rank for s in incident.verdict.suspects] == [2]

    tell(story)


def test_a_job_that_stepped_on_while_the_tower_was_away_has_recovered(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        await sim.restart_tower()
        await sim.step(3)
        assert sim.status == "recovered"
        assert [i.status.value for i in await sim.incidents()] == ["recovered"]

    tell(story)


def test_other_processes_under_the_same_name_are_another_attempt_after_a_restart_too(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        await sim.restart_tower()
        sim.world.launch(pids_from=700)
        await sim.step(5)
        assert sim.live.attempt.number == 2
        assert [i.status.value for i in await sim.incidents()] == ["ended"]

    tell(story)


def test_an_incident_whose_job_never_comes_back_is_given_up(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        await sim.restart_tower()
        sim.world.now += 700
        sim.tower.tick()
        assert [i.status.value for i in await sim.incidents()] == ["monitoring_lost"]

    tell(story)


def test_the_past_of_a_job_is_known_after_a_restart(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.restart_tower()
        await sim.report(1)
        assert sim.live.attempt.number == 1
        assert sim.tower.fleet.jobs[JOB].attempt.is_paced
        await sim.report(8)
        assert sim.status == "suspect"

    tell(story)


def test_a_pace_that_changed_is_known_after_a_restart(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(4, step_s=8)  # the first steps are slow
        await sim.step(140)
        await sim.restart_tower()
        await sim.report(1)
        assert sim.tower.fleet.jobs[JOB].attempt.pace("").typical_s < 1.5

    tell(story)


def test_ended_processes_of_moved_ranks_are_not_in_the_recalled_attempt(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(6)
        for rank in range(4):
            sim.world.end(rank, EndingKind.SIGNAL, 9)
        old = {rank + 10: one for rank, one in sim.world.ranks.items()}
        sim.world.launch(pids_from=500)
        for rank, one in sim.world.ranks.items():
            one.node = f"n{1 - rank // 2}"  # each node has the ranks of the other one now
        sim.world.ranks |= old  # and still tells of those it had
        await sim.step(6)
        assert sim.live.attempt.number == 2
        await sim.restart_tower()
        await sim.report(2)
        assert sim.live.attempt.number == 2
        assert all(r.is_live for r in sim.tower.fleet.jobs[JOB].attempt.ranks.values())

    tell(story)


def test_a_learned_pause_fades_once_a_day_and_durably(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        sim.live.watch.pauses.learn(pause := Pause(phase="", frame_class="user", length_s=100.0))
        sim.tower.store_writer.save_pause(JOB, pause)
        await sim.incidents()  # the store has written what came before
        sim.world.now += 86_400
        await sim.report(3)
        assert sim.live.watch.pauses.longest("", "user") == pytest.approx(95.0)
        await sim.restart_tower()
        sim.world.now += 2 * 86_400
        await sim.report(3)
        assert sim.live.watch.pauses.longest("", "user") == pytest.approx(100 * 0.95**3)

    tell(story)


async def end_unseen(sim: Simulation, *, but: Collection[int] = (), code: int = 0) -> None:
    """End every rank while no agent reports, except ranks `but`, whose agents see exits."""
    await sim.step(10)
    unseen = [rank for rank in sim.world.ranks if rank not in but]
    sim.world.silent = {sim.world.ranks[rank].node for rank in unseen}
    for rank in but:
        sim.world.end(rank, EndingKind.EXIT, code)
    await sim.report(5)
    for rank in unseen:
        sim.world.end(rank)
    for node in sim.world.silent:
        sim.restart_agent(node)
    sim.world.silent = set()
    await sim.report(40)


@pytest.mark.parametrize("seen", [(), (2, 3)], ids=["none", "a node"])
def test_a_job_that_ended_while_no_agent_watched_it_may_have_finished(tell, seen):
    async def story(sim: Simulation) -> None:
        await end_unseen(sim, but=seen)
        assert sim.status == "ended"
        assert await sim.incidents() == []

    tell(story)


def test_a_failure_that_an_agent_saw_is_reported_although_other_ranks_ended_unseen(tell):
    async def story(sim: Simulation) -> None:
        await end_unseen(sim, but=(2, 3), code=7)
        (incident,) = await sim.incidents()
        assert incident.verdict.cause is Cause.PROCESS_DIED
        assert {suspect.rank for suspect in incident.verdict.suspects} <= {2, 3}

    tell(story)


def test_an_empty_report_under_a_dead_node_s_name_ends_no_rank(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        sim.world.silent = {"n1"}
        await sim.report(6)
        await sim.dump(behind=-1, nodes=("n0",))
        await sim.report(20)
        assert (sim.status, sim.verdict.cause) == ("hung", Cause.NODE_LOST)
        sim.doubled = {"n1"}
        await sim.report(60)
        assert (sim.status, sim.verdict.cause) == ("hung", Cause.NODE_LOST)
        assert {suspect.rank for suspect in sim.verdict.suspects} == {2, 3}
        assert all(record.is_live for record in sim.attempt.ranks.values())

    tell(story)


def train_unseen(sim: Simulation, steps: int, stalled_s: float) -> None:
    """Let all live ranks make steps that nobody reports, then stop."""
    sim.world.now += steps + stalled_s
    for rank in sim.world.ranks.values():
        if rank.ended is None:
            rank.step, rank.advanced = rank.step + steps, steps
            rank.beat_at = sim.world.now - stalled_s


async def _hangs_again(sim: Simulation) -> None:
    await sim.report(1)
    assert [i.status.value for i in await sim.incidents()] == ["recovered"]
    await sim.report(6)
    await sim.dump(behind=1)
    await sim.report(15)
    first, second = await sim.incidents()
    assert [s.rank for s in first.verdict.suspects] == [2]
    assert (second.status.value, second.closed_at) == ("hung", None)
    assert [s.rank for s in second.verdict.suspects] == [1]
    assert second.verdict.cause is Cause.DATALOADER_STALL


def test_a_job_that_recovered_and_hung_again_while_no_tower_ran_has_two_incidents(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, rank=2)
        train_unseen(sim, steps=20, stalled_s=8)
        await sim.restart_tower()
        await _hangs_again(sim)

    tell(story)


def test_a_job_that_recovered_and_hung_again_while_its_nodes_were_cut_off_has_two_incidents(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, rank=2)
        train_unseen(sim, steps=20, stalled_s=8)
        await _hangs_again(sim)

    tell(story)


def test_a_rank_that_died_in_the_steps_after_a_hang_is_the_next_incident(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim, rank=2)
        train_unseen(sim, steps=20, stalled_s=8)
        sim.world.end(3, EndingKind.EXIT, code=1)
        await sim.restart_tower()
        await sim.report(1)
        await sim.dump(behind=3)
        await sim.report(15)
        assert sim.verdict.cause is Cause.PROCESS_DIED
        assert [s.rank for s in sim.verdict.suspects] == [3]
        assert [i.status.value for i in await sim.incidents()] == ["recovered", "hung"]

    tell(story)
