"""A job of one user hangs as usual while a job of another user does its worst beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.system.imagined_agents import ImaginedJob, get
from tests.towers import RunningTower, running_tower, wait_until
from watchtower.wire.stacks import Frame, Stack, make_stack

LATER_S = 2.0
"""The victim's verdict may come so much later than without the neighbour."""

CONFIG = """
[detection]
suspect_floor_s = 1.0
hung_floor_s = 1.0
moving_floor_s = 6.0
"""


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
    with ImaginedJob(tower.url, "bad", ranks=64, pids_from=5000, stack_of=stack_of) as bad:
        wait_until(lambda: bad.step > 15, "the attacker steps")
        bad.hang(0)
        wait_until(lambda: bad.verdict()["status"] == "suspect", "it is suspect")
        bad.send_dumps()
        assert time_verdict(tower, "victim", 3000) < usual_s + LATER_S
        # ... and the attacker's own job becomes hung, with a diagnosis or without one.
        wait_until(lambda: bad.verdict()["incident"], "the attacker's is hung", 60)
    assert get(tower.url, "/readyz")["ready"]
