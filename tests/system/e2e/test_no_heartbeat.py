"""A job without the heartbeat client through a hang, told as a timeline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.small_jobs import beside
from watchtower.commands.client import NotFoundError, TowerClient
from watchtower.drills.environment import Environment
from watchtower.drills.launching import MARK, free_port, node_mark

pytestmark = [pytest.mark.e2e, pytest.mark.ptrace, pytest.mark.timeout(120)]

STAR = Path(__file__).parent / "programs" / "star.py"
RANKS = 3
DETECTION = {
    "no_heartbeat_sample_s": 1.0,
    "no_heartbeat_samples": 3,
    "startup_grace_s": 2.0,
    "hung_floor_s": 2.0,
}


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Environment]:
    with beside(tmp_path, DETECTION) as environment:
        yield environment


@pytest.fixture
def ranks(environment: Environment) -> Iterator[list[subprocess.Popen[bytes]]]:
    port = free_port()
    mark = {
        MARK: node_mark(environment.folder, 0),
        "WATCHTOWER_JOB": "star",
        "WORLD_SIZE": str(RANKS),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-I", str(STAR), str(port)],
            env={"PATH": os.environ["PATH"], **mark, "RANK": str(rank)},
            stdin=subprocess.DEVNULL,
        )
        for rank in range(RANKS)
    ]
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def test_a_rank_without_heartbeats_that_never_comes_back_is_named(
    environment: Environment, ranks: list[subprocess.Popen[bytes]]
):
    client = TowerClient(environment.tower_url)
    seen: list[str] = []

    def verdict() -> dict:
        try:
            found = client.verdict("star")
        except NotFoundError:
            found = {"status": "unseen", "summary": ""}
        seen.extend([found["status"]] if seen[-1:] != [found["status"]] else [])
        return found

    def want(what: str, condition: Callable[[dict], bool], deadline_s: float = 30.0) -> dict:
        until = time.monotonic() + deadline_s
        while not condition(found := verdict()):
            assert time.monotonic() < until, f"no {what} within {deadline_s} s: {found}"
            time.sleep(0.05)
        return found

    want("the job is sampled", lambda v: "checked by stack samples every 1 s" in v["summary"])
    until = time.monotonic() + 5.0  # well past the grace: it works, and is not suspected
    while time.monotonic() < until:
        assert verdict()["status"] == "healthy"
        time.sleep(0.1)

    ranks[1].send_signal(signal.SIGUSR1)
    began = time.monotonic()
    hung = want("incident", lambda v: v["status"] == "hung")
    assert time.monotonic() - began < 20.0
    assert [(s["rank"], s["pid"]) for s in hung["suspects"]] == [(1, ranks[1].pid)]
    assert "star.py" in hung["suspects"][0]["where"]
    assert "read_shard" in hung["suspects"][0]["where"]
    assert hung["waiting"] == "0,2"
    assert hung["step"] is None
    assert hung["confidence"] <= 0.85
    assert any("no heartbeat file" in gap for gap in hung["missing_evidence"])

    ranks[1].send_signal(signal.SIGUSR2)
    want("recovery", lambda v: v["status"] == "recovered")
    assert seen[-4:] == ["healthy", "suspect", "hung", "recovered"]
