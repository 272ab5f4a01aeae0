"""`watchtower run` and `watchtower condition` as processes, with a real tower and a job that hangs.

The agents are simulated: the tower, its verdict and the commands are real.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.hung_jobs import FAST, SmallJob, reporting
from tests.towers import RunningTower, running_tower
from tests.waiting import wait_until
from watchtower.commands.client import NotFoundError, TowerClient
from watchtower.commands.running import HUNG_CODE
from watchtower.service.interpreter import module_command

PATIENCE_S = 120.0
SLEEPS = (sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(300)")


@pytest.fixture
def tower(tmp_path: Path) -> Iterator[RunningTower]:
    (tmp_path / "tower.toml").write_text(FAST)
    with running_tower(tmp_path / "tower", "--config", str(tmp_path / "tower.toml")) as tower:
        yield tower


@contextlib.contextmanager
def hung(tower: RunningTower, name: str) -> Iterator[SmallJob]:
    """A job that steps, and hangs when it is told to."""
    job = SmallJob(name)
    with reporting(tower.url, job):
        wait_until(lambda: (verdict_of(tower, name)["step"] or 0) > 8, "steps", PATIENCE_S)
        yield job


def verdict_of(tower: RunningTower, job: str) -> dict:
    try:
        return TowerClient(tower.url).verdict(job)
    except NotFoundError:
        return {"status": "unseen", "step": None}


def start(*words: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*module_command("watchtower", "run", "--every", "1s", *words)],
        env={name: text for name, text in os.environ.items() if name != "WATCHTOWER_JOB"}
        | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def condition(url: str, *words: str) -> tuple[int, str]:
    command = module_command("watchtower", "condition", "--tower", url, *words)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.timeout(300)
def test_a_hung_job_has_its_verdict_in_its_log_and_ends_with_a_code_of_its_own(
    tower: RunningTower,
) -> None:
    with hung(tower, "llama") as job, hung(tower, "healthy"):
        where = ("--tower", tower.url)
        watched = start(*where, "--", *SLEEPS, WATCHTOWER_JOB="llama")
        ended = start(*where, "--job", "llama", "--end-when-hung", "2s", "--", *SLEEPS)
        healthy = start(*where, "--job", "healthy", "--end-when-hung", "2s", "--", *SLEEPS)
        job.stop()
        output, log = ended.communicate(timeout=PATIENCE_S)
        assert ended.returncode == HUNG_CODE, log
        assert output == "begun\n"
        assert "[watchtower] llama: hung" in log
        assert "rank 1" in log
        assert f"exit code {HUNG_CODE}" in log
        verdict_is_handed_over_to_the_node_and_only_to_it(tower, job.node)
        job.resume()
        wait_until(lambda: verdict_of(tower, "llama")["status"] == "healthy", "steps", PATIENCE_S)
        time.sleep(3)  # some more questions
        assert healthy.poll() is None  # a healthy job is not ended
        assert watched.poll() is None  # nor one that may only be watched
        for each in (watched, healthy):
            each.send_signal(signal.SIGTERM)
        _, log = watched.communicate(timeout=30)
        assert "[watchtower] llama: hung" in log
        assert "[watchtower] the job is recovered" in log
        assert watched.returncode == 128 + signal.SIGTERM
        assert healthy.communicate(timeout=30)[1] == ""


def verdict_is_handed_over_to_the_node_and_only_to_it(tower: RunningTower, node: str) -> None:
    (listed,) = TowerClient(tower.url).incidents("llama")
    verdict = TowerClient(tower.url).incident(listed["id"])["verdict"]
    asked = ("--domain", verdict["domain"], "--min-confidence", "0.1", "--settled", "1s")
    reason = f"watchtower: {verdict['cause']} incident {listed['id']}\n"
    assert condition(tower.url, "--node", node, *asked) == (1, reason)
    assert condition(tower.url, "--node", "another", *asked)[0] == 0
    assert condition(tower.url, "--node", node)[0] == 0  # a stopped process is no fault of a node
    code, text = condition(tower.url, "--node", node, *asked, "--observe")
    assert (code, text.endswith("observe mode\n")) == (0, True)
    TowerClient(tower.url).silence("node", node, 600.0)
    assert "a person has silenced the node" in condition(tower.url, "--node", node, *asked)[1]


def test_a_command_runs_as_without_it_when_no_tower_answers(tmp_path: Path) -> None:
    gone = ("--tower", "http://127.0.0.1:9")
    program = "import sys, time; time.sleep(3); print(sys.stdin.read()); sys.exit(7)"
    process = start(*gone, "--", sys.executable, "-c", program)
    output, log = process.communicate(timeout=60)
    assert (process.returncode, output.strip()) == (7, "")
    assert log.count("no verdicts at present") == 1
    assert condition("http://127.0.0.1:9")[0] == 2
    missing = start(*gone, "--", "no-such-program")
    assert "there is no such program" in missing.communicate(timeout=60)[1]
    assert missing.returncode == 2
