"""Actors of a real Ray cluster, which Ray gave no ranks: the one that hangs is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.e2e.found_groups import DEADLINE_S, watched
from tests.system.frameworks import needs
from tests.waiting import wait_until

TRAINERS, CULPRIT = 4, 2
JOB, IDLE_JOB = "ray-01000000.Trainer", "ray-01000000"

pytestmark = [
    *needs("ray"),
    pytest.mark.e2e,
    pytest.mark.ptrace,
]


def test_the_actor_that_hangs_is_named_and_idle_actors_are_idle(tmp_path: Path) -> None:
    with watched(tmp_path) as tower:
        pids = tower.start("ray_trainers.py", RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0")
        wait_until(lambda: tower.verdict(JOB)["incident"], "an incident", DEADLINE_S)
        (suspect,) = tower.verdict(JOB)["suspects"]
        assert suspect["pid"] == pids[:TRAINERS][CULPRIT]
        assert "fetch" in suspect["where"]
        assert {each["job"] for each in tower.client.jobs()} == {JOB, IDLE_JOB}
        assert tower.progress(IDLE_JOB) == ("healthy", "idle")
        assert tower.client.job(IDLE_JOB)["world_size"] == 2
