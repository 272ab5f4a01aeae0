"""Jobs without heartbeats whose hosts wait for their devices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.diagnosis.builders import IN_USER_CODE, POLLS, a_native
from tests.tower.simulator import Simulation
from tests.tower.watching import Watching
from watchtower.jobs.condition import ConditionKind
from watchtower.wire.dumps import NativeKind

BLOCKED = a_native("python", library="python3.11", run_ns=5_000_000, switches=80)

SERVING = "select @selectors.py:415 < serve_forever @socketserver.py:233 < main serve.py:40"
ASLEEP = replace(BLOCKED, kind=NativeKind.DEVICE_WAIT, library="libcuda.so.1")


def wait_for_devices(sim: Simulation) -> None:
    """Let all hosts poll for their devices. Helper threads use CPU, too."""
    for rank in sim.world.ranks.values():
        rank.cpu_cores = 1.0
    sim.natives = dict.fromkeys(sim.world.ranks, POLLS)


def test_hosts_that_poll_for_devices_do_not_hide_a_rank_that_is_blocked(tell_no_heartbeat):
    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.work(200)
        wait_for_devices(sim)
        sim.natives[2] = BLOCKED  # only the second sample shows that it stays blocked
        assert 50 <= await watch.until("suspect") <= 82
        await watch.go(20)
        assert (sim.status, [s.rank for s in sim.verdict.suspects]) == ("hung", [2])

    tell_no_heartbeat(story)


def block(sim: Simulation, rank: int) -> None:
    """Let the main thread of a rank stop running, as its agent sees it."""
    sim.natives[rank] = BLOCKED
    sim.world.ranks[rank].blocked_at = sim.world.now


def test_a_thread_that_does_not_run_is_sampled_more_often_and_sooner_suspect(tell_no_heartbeat):
    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.work(200)
        wait_for_devices(sim)
        block(sim, 2)
        watch.every_s = 1
        assert 30 <= await watch.until("suspect") <= 37  # the first sample shows no block
        await watch.go(12)
        assert (sim.status, [s.rank for s in sim.verdict.suspects]) == ("hung", [2])

    tell_no_heartbeat(story)


def test_a_rank_that_is_blocked_in_the_first_minutes_is_sooner_suspect(tell_no_heartbeat):
    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.work(20)
        wait_for_devices(sim)
        block(sim, 2)
        sim.natives[2] = replace(BLOCKED, ends_in_s=86400.0)
        watch.every_s = 1
        suspect_s = await watch.until("suspect")
        assert suspect_s <= 35
        assert [s.rank for s in sim.verdict.suspects] == [2]
        assert suspect_s + await watch.until("hung") <= 60

    tell_no_heartbeat(story, no_heartbeat_sample_s=30)


def test_a_job_that_stays_blocked_is_not_sampled_more_often_for_ever(tell_no_heartbeat):
    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.work(200)
        block(sim, 2)
        await watch.go(80, behind=-1)
        before = watch.samples
        await watch.go(200, behind=-1)
        assert watch.samples - before <= 2 * 11  # for two nodes

    tell_no_heartbeat(story)


def test_blocked_waits_for_devices_are_not_sooner_suspect(tell_no_heartbeat):
    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.work(200)
        watch.be_still()
        for rank in sim.world.ranks:
            block(sim, rank)
            sim.natives[rank] = ASLEEP
        assert 40 <= await watch.until("suspect", behind=-1) <= 62

    tell_no_heartbeat(story)


def test_helper_threads_do_not_hide_blocked_waits_for_devices(tell_no_heartbeat):
    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.work(200)
        wait_for_devices(sim)
        for rank in sim.world.ranks:
            sim.natives[rank] = ASLEEP
        assert 40 <= await watch.until("suspect", behind=-1) <= 82

    tell_no_heartbeat(story)


@pytest.mark.parametrize(("cores", "is_suspect"), [(0.01, True), (0.2, False)])
def test_a_rank_that_asks_again_and_again_at_one_line_rests(tell_no_heartbeat, cores, is_suspect):
    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.work(200)
        wait_for_devices(sim)
        for second in range(90):
            run_ns = round(1e9 * cores * second)
            sim.natives[2] = replace(BLOCKED, switches=20 * second, run_ns=run_ns)
            await watch.go(1, stack=IN_USER_CODE)
        assert ("suspect" in watch.statuses) is is_suspect

    tell_no_heartbeat(story)


@pytest.mark.parametrize(
    ("native", "seconds"),
    [
        (a_native("python", running=True), (50, 82)),
        (a_native("native", library="_sre.so", running=True), (50, 82)),
        (a_native("generated", running=True), (160, 190)),
    ],
)
def test_a_rank_that_runs_code_while_the_others_wait_is_sooner_suspect(
    tell_no_heartbeat, native, seconds
):
    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.work(200)
        wait_for_devices(sim)
        sim.natives[2] = native
        assert seconds[0] <= await watch.until("suspect", stack=IN_USER_CODE) <= seconds[1]
        await watch.go(3, stack=IN_USER_CODE)
        assert [s.rank for s in sim.verdict.suspects] == [2]

    tell_no_heartbeat(story)


RUNS_PYTHON, RUNS_GENERATED = (a_native(kind, running=True) for kind in ("python", "generated"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("worked_s", "native", "status"),
    [(200, RUNS_PYTHON, "hung"), (200, RUNS_GENERATED, "suspect"), (60, RUNS_PYTHON, "suspect")],
)
def test_a_rank_that_runs_code_is_hung_after_as_many_samples_again(
    tell_no_heartbeat, worked_s, native, status
):
    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.work(worked_s)
        wait_for_devices(sim)
        sim.natives[2] = native
        await watch.until("suspect", stack=IN_USER_CODE)
        await watch.go(50, stack=IN_USER_CODE)
        assert sim.status == "suspect"
        await watch.go(20, stack=IN_USER_CODE)
        assert (sim.status, [s.rank for s in sim.verdict.suspects]) == (status, [2])

    tell_no_heartbeat(story)


def test_ranks_that_all_run_code_are_not_sooner_suspect(tell_no_heartbeat):
    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.work(200)
        wait_for_devices(sim)
        sim.natives = dict.fromkeys(sim.world.ranks, a_native("python", running=True))
        await watch.go(150, stack=IN_USER_CODE)
        assert watch.statuses == ["healthy"]

    tell_no_heartbeat(story)


def test_devices_may_work_for_long_while_all_hosts_wait_for_them(tell_no_heartbeat):
    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.work(200)
        wait_for_devices(sim)
        await watch.go(150, behind=-1)
        assert watch.statuses == ["healthy"]
        await watch.go(60, behind=-1)
        assert sim.status == "suspect"

    tell_no_heartbeat(story)


@pytest.mark.parametrize("target", ["unix socket /run/requests", "tcp 0.0.0.0:8000 listening"])
def test_a_server_without_requests_is_not_hung(tell_no_heartbeat, target):
    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.work(200)
        wait_for_devices(sim)
        sim.natives[2], sim.targets[2] = BLOCKED, target
        await watch.go(400, stack=IN_USER_CODE)
        assert watch.statuses == ["healthy"]
        assert sim.live.watch.kind is ConditionKind.IDLE
        assert sim.live.watch.reason.startswith("rank 2 waits for clients")

    tell_no_heartbeat(story, no_step_floor_s=60)  # else unchanged samples alone are suspect


def test_a_server_is_known_by_its_stack_too(tell_no_heartbeat):
    async def story(sim: Simulation, watch: Watching) -> None:
        await watch.work(200)
        wait_for_devices(sim)
        sim.natives[2] = BLOCKED
        await watch.go(400, stack=SERVING)
        assert watch.statuses == ["healthy"]
        assert sim.live.watch.kind is ConditionKind.IDLE

    tell_no_heartbeat(story)
