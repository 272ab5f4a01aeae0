"""Jobs without heartbeats: the tower samples their stacks, and reports when nothing changes."""

from __future__ import annotations

import asyncio

import pytest

from tests.diagnosis.builders import FETCHING, IN_ALL_REDUCE, IN_USER_CODE, SAVING
from tests.jobs.scenes import JOB
from tests.properties import is_thorough
from tests.tower.simulator import Simulation
from tests.tower.watching import LINES, Watching
from watchtower.tower import examination
from watchtower.wire.report import EndingKind, ProcessState
from watchtower.wire.verdict import Cause

COMPILING = (
    "Popen.wait @subprocess.py:1264 < compile @torch/_inductor/codecache.py:1800"
    " < train /home/ann/job/main.py:42 < <module> main.py:80"
)


def test_a_hung_job_without_heartbeat_files_is_suspect_and_then_an_incident(tell_no_heartbeat):
    async def story(sim: Simulation, watch: Watching) -> None:
        watch.every_s = 2
        await watch.work(200)
        assert watch.statuses == ["healthy"]
        assert sim.live.watch.reason == (
            "checked by stack samples every 20 s: no rank has a heartbeat file"
        )
        assert (watch.samples, watch.dumps) == (20, 0)
        watch.be_still()
        assert 40 <= await watch.until("suspect") <= 62
        await watch.go(3)
        assert 38 <= sim.verdict.stalled_for_s <= 62
        await watch.go(14)
        assert (sim.status, sim.verdict.cause) == ("hung", Cause.DATALOADER_STALL)
        assert [s.rank for s in sim.verdict.suspects] == [2]
        assert sim.verdict.confidence <= 0.85
        assert any("no heartbeat file" in gap for gap in sim.verdict.missing_evidence)
        await watch.go(60)
        await watch.work(25)
        assert watch.statuses == ["healthy", "suspect", "hung", "recovered", "healthy"]
        assert len(await sim.incidents()) == 1

    tell_no_heartbeat(story)


def test_samples_go_on_while_it_hangs_and_are_not_stored(tell_no_heartbeat):
    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.work(130)
        watch.be_still()
        await watch.go(200)
        assert sim.status == "hung"
        assert watch.samples >= 30
        assert sim.tower.counters.dumps == 2 * watch.dumps
        assert all(len(r.dumps) == 2 for r in sim.attempt.ranks.values())

    tell_no_heartbeat(story)


@pytest.mark.parametrize("stack", [IN_ALL_REDUCE, IN_USER_CODE])
def test_a_job_whose_ranks_spin_needs_more_samples(tell_no_heartbeat, stack):
    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.work(200)
        await watch.go(150, stack=stack)
        assert watch.statuses == ["healthy"]
        await watch.go(60, stack=stack)
        assert sim.status == "suspect"

    tell_no_heartbeat(story)


@pytest.mark.thorough
def test_a_job_unchanged_for_most_of_a_step_is_not_suspected(tell_no_heartbeat):
    async def story(sim: Simulation, watch: Watching) -> None:
        for rank in sim.world.ranks.values():
            rank.cpu_cores = 1.0
        for number in range(20 if is_thorough() else 8):
            await watch.go(95, stack=LINES[number % 2])  # four or five samples in one line
            await watch.go(25, stack=LINES[2])
        assert watch.statuses == ["healthy"]

    tell_no_heartbeat(story)


@pytest.mark.parametrize("stack", [COMPILING, SAVING, FETCHING])
def test_a_rank_at_work_that_computes_is_waited_for(tell_no_heartbeat, stack):
    async def story(sim: Simulation, watch: Watching) -> None:
        sim.world.ranks[2].cpu_cores = 0.9
        await watch.go(1800 if is_thorough() else 600, stack=stack)
        assert watch.statuses == ["healthy"]

    tell_no_heartbeat(story)


@pytest.mark.parametrize("field", ["socket_bytes_per_s", "write_bytes_per_s", "read_bytes_per_s"])
def test_a_rank_that_moves_bytes_is_waited_for(tell_no_heartbeat, field):
    async def story(sim: Simulation, watch: Watching) -> None:
        sim.world.ranks[2].moves = {field: 1e6}
        await watch.go(900 if is_thorough() else 300, stack=IN_USER_CODE)
        assert watch.statuses == ["healthy"]
        sim.world.ranks[2].moves = {}
        assert 40 <= await watch.until("suspect", stack=IN_USER_CODE) <= 62

    tell_no_heartbeat(story)


def test_a_rank_that_is_stopped_is_found_after_two_samples(tell_no_heartbeat):
    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.work(200)
        watch.every_s = 1
        rank = sim.world.ranks[1]
        rank.state, rank.cpu_cores = ProcessState.STOPPED, 0.0
        assert await watch.until("suspect", behind=-1) <= 42  # the others wait for it, and spin
        await watch.go(2, behind=-1)
        assert sim.verdict.cause is Cause.PROCESS_STOPPED
        await watch.go(12, behind=-1)
        assert sim.status == "hung"
        assert [s.rank for s in sim.verdict.suspects] == [1]
        rank.state, rank.cpu_cores = ProcessState.SLEEPING, 1.0
        await watch.work(30)
        assert "recovered" in watch.statuses

    tell_no_heartbeat(story)


def test_the_death_of_a_rank_is_reported_at_once(tell_no_heartbeat):
    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.work(200)
        sim.world.end(3, EndingKind.SIGNAL, 9)
        await watch.go(4, behind=-1)
        assert (sim.status, sim.verdict.cause) == ("suspect", Cause.PROCESS_DIED)
        await watch.go(12, behind=-1)
        assert sim.status == "hung"
        assert [s.rank for s in sim.verdict.suspects] == [3]

    tell_no_heartbeat(story)


@pytest.mark.long
def test_a_job_in_which_no_rank_waits_for_another_has_long_patience(tell_no_heartbeat):
    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.work(130)
        watch.be_still()
        watch.every_s = 4
        await watch.go(600, behind=-1)  # everybody waits at the same place: for work, perhaps
        assert watch.statuses == ["healthy", "suspect"]
        await watch.go(400, behind=-1)
        assert sim.status == "hung"
        assert sim.verdict.suspects == ()

    tell_no_heartbeat(story)


def test_a_pause_that_ended_by_itself_is_waited_for_longer(tell_no_heartbeat):
    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.work(130)
        for _ in range(4):
            watch.be_still()
            await watch.go(75)
            await watch.work(40)
        assert watch.statuses == ["healthy", "suspect", "hung", "recovered", "healthy"]

    tell_no_heartbeat(story)


def test_no_stall_is_reported_in_the_first_two_minutes_or_for_a_single_rank(tell_no_heartbeat):
    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.go(118)
        assert watch.statuses == ["healthy"]
        for rank in (0, 1, 3):
            sim.world.end(rank)
        await watch.go(600)
        assert sim.status == "healthy"

    tell_no_heartbeat(story)


def test_ranks_with_pages_that_never_beat_are_watched_by_samples_after_the_start(tell_no_heartbeat):
    async def story(sim: Simulation, watch: Watching) -> None:
        for rank in sim.world.ranks.values():
            rank.has_page, rank.cpu_cores = True, 1.0
        for second in range(300):
            stack = LINES[second // 7 % len(LINES)]
            await watch.go(1, behind=second // 20 % 4, stack=stack)
        assert watch.statuses == ["healthy", "suspect", "healthy"]
        assert "is beat() called?" in sim.live.watch.reason
        watch.be_still()
        await watch.go(70)
        assert sim.status != "healthy"

    tell_no_heartbeat(story)


def test_a_job_whose_stacks_cannot_be_read_is_reported_as_not_watched(tell_no_heartbeat):
    async def story(sim: Simulation, watch: Watching) -> None:
        await sim.report(200)  # no agent answers the orders for samples
        assert sim.status == "monitoring_lost"
        text = "not watched: no stack can be read (see /readyz), and no rank has a heartbeat file"
        assert sim.live.watch.reason == text

    tell_no_heartbeat(story)


def test_one_beat_ends_the_samples(tell_no_heartbeat):
    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.work(60)
        before = watch.samples
        sim.world.ranks[0].has_page = True
        await sim.step(12)
        await watch.go(5)
        assert watch.samples == before

    tell_no_heartbeat(story)


def test_a_restarted_tower_keeps_the_incident_until_something_changes(tell_no_heartbeat):
    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.work(130)
        watch.be_still()
        await watch.go(90)
        assert sim.status == "hung"
        await sim.restart_tower()
        await watch.go(100)
        assert sim.status == "hung"
        await watch.work(45)
        assert "recovered" in watch.statuses
        assert len(await sim.incidents()) == 1

    tell_no_heartbeat(story)


def test_an_examination_knows_since_when_the_job_has_been_stalled(tell_no_heartbeat, monkeypatch):
    monkeypatch.setattr(examination, "POLL_S", 0.001)

    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.work(200)
        watch.be_still()
        await watch.until("suspect")
        await watch.go(20)
        task = asyncio.create_task(sim.tower.examinations.examine(JOB))
        await asyncio.sleep(0)
        await sim.dump(behind=2)
        assert (await task).verdict.stalled_for_s >= sim.verdict.stalled_for_s - 1 > 38

    tell_no_heartbeat(story)
