"""A job of one user hangs as usual while a job of another user does its worst beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from tests.system.imagined_agents import ImaginedJob, get
from tests.towers import RunningTower, running_tower
from tests.waiting import wait_until
from watchtower.wire.report import Beat, RankVitals
from watchtower.wire.stacks import Frame, Stack, make_stack

LATER_S = 2.0
"""The victim's verdict may come so much later than without the neighbour."""

CONFIG = """
[detection]
suspect_floor_s = 1.0
hung_floor_s = 1.0
moving_floor_s = 6.0
"""


ATTACKER = "uid:2000"


@pytest.fixture
def tower(tmp_path: Path) -> Iterator[RunningTower]:
    config = tmp_path / "watchtower.toml"
    config.write_text(CONFIG)
    with running_tower(tmp_path, "--config", str(config)) as running:
        yield running


def time_verdict(tower: RunningTower, name: str, pids_from: int) -> float:
    """Let a job hang; return the seconds from its hang to the verdict with the right rank."""
    with ImaginedJob(tower.url, name, pids_from=pids_from) as job:
        wait_until(lambda: job.step > 15, "the victim steps")
        job.hang(2)
        wait_until(lambda: job.verdict()["status"] == "suspect", "the victim is suspect")
        job.send_dumps()
        wait_until(lambda: [s["rank"] for s in job.verdict()["suspects"]] == [2], "it is named")
        took_s = time.monotonic() - job.hung_at
        wait_until(lambda: job.verdict()["incident"], "its incident opens")
    return took_s


@cache
def _underscores(rank: int) -> tuple[Stack, ...]:
    names = [f"{'_' * 1000}{rank}_{depth}" for depth in range(100)]
    return (make_stack(tuple(Frame(function=n, file=f"{n}.py", line=1) for n in names)),)


@cache
def _too_many(rank: int) -> tuple[Stack, ...]:
    """More than a diagnosis can read in its time: 16 threads of 100 frames in each of 64 ranks."""
    return tuple(
        make_stack(
            tuple(
                Frame(function=f"f{rank}_{thread}_{depth}", file=f"/x/{depth % 7}.py", line=depth)
                for depth in range(100)
            )
        )
        for thread in range(16)
    )


@pytest.mark.parametrize("stack_of", [_underscores, _too_many], ids=["long names", "many frames"])
def test_a_job_that_is_dear_to_diagnose_delays_no_other_job(tower, stack_of):
    usual_s = time_verdict(tower, "usual", 1000)
    with ExitStack() as attack:
        bad = [
            attack.enter_context(
                ImaginedJob(
                    tower.url,
                    f"bad{n}",
                    owner=ATTACKER,
                    ranks=64,
                    pids_from=5000 + 1000 * n,
                    stack_of=stack_of,
                )
            )
            for n in range(4)
        ]
        wait_until(lambda: all(job.step > 15 for job in bad), "the attackers step")
        for job in bad:
            job.hang(0)
        for job in bad:
            wait_until(lambda job=job: job.verdict()["status"] != "healthy", "they are suspect")
        for job in bad:
            job.send_dumps()
        took_s = time_verdict(tower, "victim", 3000)
        assert took_s < usual_s + LATER_S
        # ... and the attackers' own jobs become hung, with a diagnosis or without one.
        for job in bad:
            wait_until(lambda job=job: job.verdict()["incident"], "theirs are hung", 60)
    assert get(tower.url, "/readyz")["ready"]


def test_another_user_s_processes_with_a_job_s_name_neither_stall_it_nor_hide_its_ranks(tower):
    """They claim a rank that there is, one that there is not, and a rank from another node."""
    stuck = Beat(step=1, age_s=500.0)
    claims = [
        RankVitals(
            job="victim",
            rank=rank,
            pid=9000 + rank,
            start_time=10,  # older than every rank
            world_size=16,
            owner=ATTACKER,
            launched=True,
            found_age_s=500.0,
            beat=stuck,
        )
        for rank in (2, 15)
    ]
    with (
        ImaginedJob(tower.url, "victim") as victim,
        ImaginedJob(tower.url, "elsewhere", pids_from=7000) as elsewhere,
    ):
        wait_until(lambda: victim.step > 5, "the victim steps")
        victim.beside = elsewhere.beside = claims
        wait_until(lambda: victim.step > 40, "the victim steps on")
        job = get(tower.url, "/api/v1/jobs/victim")
        assert (job["status"], job["owner"], job["rivals"]) == ("healthy", "uid:1000", [])
        assert [(rank["rank"], rank["pid"]) for rank in job["rank_states"]] == [
            (rank, 1000 + rank) for rank in range(4)
        ]
        listed = {item["job"]: item["owner"] for item in get(tower.url, "/api/v1/jobs")["items"]}
        assert listed["victim@uid:2000"] == ATTACKER
        victim.hang(2)
        wait_until(lambda: victim.verdict()["status"] == "suspect", "the victim is suspect")
        victim.send_dumps()
        wait_until(lambda: [s["rank"] for s in victim.verdict()["suspects"]] == [2], "it is named")
        wait_until(lambda: victim.verdict()["incident"], "its incident opens")
