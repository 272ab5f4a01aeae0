"""One job through two hangs, told as a timeline: what an operator sees, in which order."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.small_jobs import FAST, beside
from watchtower.commands.client import NotFoundError, TowerClient
from watchtower.drills.environment import Environment
from watchtower.drills.job import TrainingJob
from watchtower.drills.launching import Layout

pytestmark = [pytest.mark.e2e, pytest.mark.ptrace, pytest.mark.timeout(240)]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Environment]:
    with beside(tmp_path, FAST, nodes=2) as environment:
        yield environment


@pytest.fixture
def job(tmp_path: Path) -> Iterator[TrainingJob]:
    job = TrainingJob("timeline", "stdlib", Layout(ranks=4, nodes=2), tmp_path)
    yield job
    job.end()


def test_a_hang_recovers_the_next_one_is_a_new_incident_and_the_end_closes_it(
    environment: Environment, job: TrainingJob
):
    client = TowerClient(environment.tower_url)

    def verdict() -> dict:
        job.poll()
        try:
            return client.verdict("timeline")
        except NotFoundError:
            return {"status": "unseen", "step": None}

    def want(what: str, condition: Callable[[dict], bool], deadline_s: float = 45.0) -> dict:
        until = time.monotonic() + deadline_s
        while not condition(seen := verdict()):
            assert time.monotonic() < until, f"no {what} within {deadline_s} s: {seen}"
            time.sleep(0.05)
        return seen

    job.launch({"step_s": 0.2, "jitter": 0.15})
    want("steps", lambda v: v["status"] == "healthy" and (v["step"] or 0) >= 10)
    assert client.incidents() == []

    job.signal(2, signal.SIGSTOP)
    suspect = want("diagnosed suspicion", lambda v: v.get("diagnosed_at") is not None)
    assert suspect["status"] == "suspect"
    assert suspect["incident"] is None
    assert client.incidents() == []

    hung = want("incident", lambda v: v["status"] == "hung")
    assert [s["rank"] for s in hung["suspects"]] == [2]
    assert hung["cause"] == "process_stopped"
    assert hung["waiting"] == "0-1,3"
    (incident,) = client.incidents()
    assert incident["id"] == hung["incident"]
    assert incident["closed_at"] is None
    stacks = client.incident(incident["id"])["stacks"]
    assert any("all_reduce" in frame["function"] for s in stacks for frame in s["frames"])

    job.signal(2, signal.SIGCONT)
    recovered = want("recovery", lambda v: v["status"] == "recovered")
    assert recovered["incident"] == hung["incident"]
    assert client.incidents()[0]["closed_at"] is not None
    view = client.job("timeline")
    want("steps again", lambda _: (client.job("timeline")["step"] or 0) >= view["step"] + 3)

    job.signal(1, signal.SIGSTOP)
    again = want("second incident", lambda v: v["status"] == "hung")
    assert [s["rank"] for s in again["suspects"]] == [1]
    assert again["incident"] != hung["incident"]

    job.signal_all(signal.SIGKILL)
    ended = want("end", lambda v: v["status"] == "ended")
    assert ended["incident"] == again["incident"]
    assert ended["cause"] == "process_stopped"
    statuses = [one["status"] for one in client.incidents("timeline")]
    assert statuses == ["ended", "recovered"]
    assert "rank 1" in client.verdict_text("timeline")
