"""Actors of a real Ray cluster, which Ray gave no ranks: the one that hangs is named."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.waiting import wait_until
from watchtower.commands.client import NotFoundError, TowerClient
from watchtower.drills.environment import Environment
from watchtower.drills.launching import MARK, node_mark
from watchtower.drills.settings import read_config

PROGRAM = Path(__file__).parent / "groups" / "ray_trainers.py"
CONFIG = read_config(Path(__file__).parent / "fast.toml")
DEADLINE_S = 120.0
TRAINERS, CULPRIT = 4, 2
JOB, IDLE_JOBS = "ray-01000000.Trainer", ("ray-01000000.Scorer", "ray-01000000")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.e2e,
    pytest.mark.ptrace,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="ray is not installed: `make test-torch` installs it and runs these",
    ),
]


@dataclass(frozen=True)
class Cluster:
    """A local cluster of Ray."""

    trainers: list[int]
    """Their pids."""
    client: TowerClient

    def verdict(self, job: str) -> dict:
        with contextlib.suppress(NotFoundError):
            return self.client.verdict(job)
        return {"incident": None, "status": ""}


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    environment = Environment(
        folder,
        nodes=1,
        interval_s=CONFIG.drill.agent_interval_s,
        detection=CONFIG.detection,
        forwarded=False,
        start_deadline_s=60.0,
    )
    with environment, (folder / "driver.log").open("wb") as log:
        driver = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            env={
                **os.environ,
                MARK: node_mark(folder, 0),
                "RAY_AUTH_MODE": "disabled",
                "RAY_USAGE_STATS_ENABLED": "0",
            },
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            assert driver.stdout is not None
            with driver.stdout as printed:
                pids = [int(word) for word in printed.readline().split()]
            assert pids, (folder / "driver.log").read_text()[-3000:]
            client = TowerClient(environment.tower_url)
            yield Cluster(trainers=pids[:TRAINERS], client=client)
        finally:
            driver.terminate()  # Ray ends what it has started
            with contextlib.suppress(subprocess.TimeoutExpired):
                driver.wait(20.0)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)


def test_the_actor_that_hangs_is_named_and_idle_actors_are_idle(tmp_path: Path) -> None:
    with running(tmp_path) as cluster:
        wait_until(lambda: cluster.verdict(JOB)["incident"], "an incident", DEADLINE_S)
        (suspect,) = cluster.verdict(JOB)["suspects"]
        assert suspect["pid"] == cluster.trainers[CULPRIT]
        assert "fetch" in suspect["where"]
        assert {each["job"] for each in cluster.client.jobs()} == {JOB, *IDLE_JOBS}
        for job in IDLE_JOBS:
            idle = cluster.client.job(job)
            assert (idle["status"], idle["progress"]) == ("healthy", "idle")
            assert idle["world_size"] == 2
