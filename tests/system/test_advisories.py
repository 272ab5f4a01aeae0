"""Advisories of real jobs: what is wrong is listed by a command, and healthy jobs show none."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.system.small_jobs import CULPRIT, PROGRAMS, launched
from watchtower.drills.launching import MARK, node_mark
from watchtower.service.interpreter import module_command

pytestmark = pytest.mark.system


def advise(job, *words):
    """Return what `watchtower advisories` prints of a job."""
    command = module_command("watchtower", "advisories", job.name, "--tower", job.place.tower_url)
    return subprocess.run([*command, *words], stdout=subprocess.PIPE, text=True, check=False).stdout


def wait_for(job, text, deadline_s=20.0):
    until = time.monotonic() + deadline_s
    while text not in (shown := advise(job)):
        assert time.monotonic() < until, shown
        time.sleep(0.3)
    return shown


@contextlib.contextmanager
def restarted(job, folder, **environment):
    """End the ranks of a job, and start it again."""
    for pid in job.pids:
        os.kill(pid, signal.SIGKILL)
    time.sleep(2.0)
    with contextlib.ExitStack() as stack:
        for rank in range(len(job.pids)):
            process = subprocess.Popen(
                [sys.executable, str(PROGRAMS / "advised.py")],
                env={
                    **os.environ,
                    MARK: node_mark(folder, 0),
                    "WATCHTOWER_JOB": job.name,
                    "WORLD_SIZE": str(len(job.pids)),
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "TMPDIR": str(folder),
                    **environment,
                },
                stdin=subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def test_a_nan_loss_is_an_advisory_and_no_incident(tmp_path):
    with launched("advised", tmp_path, FIRST="0", BAD_LOSS="1") as job:
        shown = wait_for(job, "nan_loss")
        assert "FATAL nan_loss: advised rank 1: rank 1 reported a NaN or infinite loss" in shown
        assert "do: stop advised, and start it from a checkpoint before that step" in shown
        assert job.verdict()["status"] == "healthy"


@pytest.mark.parametrize("first", [0, 30])
def test_a_job_that_begins_anew_has_lost_its_steps_unless_it_goes_on(tmp_path, first):
    with launched("advised", tmp_path, FIRST="0", SAVES="1") as job:
        job.wait_for(lambda verdict: (verdict["step"] or 0) >= 35, 60.0)
        assert "No advisories" in advise(job), "the healthy job is silent"
        with restarted(job, tmp_path, FIRST=str(first)):
            if first == 0:
                shown = wait_for(job, "lost_steps", 30.0)
                assert "; attempt 1 had reached step " in shown
                assert "; its last complete checkpoint was at step " in shown
            else:
                job.wait_for(lambda verdict: verdict["generation"] == 2, 30.0)
                time.sleep(2.0)
                assert "No advisories" in advise(job)


def configure(job):
    """Return the values that the tower knows of a job, by name: each value with its ranks."""
    found = job.client.configuration(job.name)
    return {
        each["name"]: {group["value"]: group["members"] for group in each["value_groups"]}
        for each in found["items"]
        if not each["is_of_nodes"]
    }


def test_a_rank_with_another_setting_is_found_and_secrets_stay_on_the_node(tmp_path):
    odd = {CULPRIT: {"NCCL_ALGO": "Tree"}}
    with launched(
        "advised",
        tmp_path,
        of_rank=odd,
        FIRST="0",
        NCCL_ALGO="Ring",
        HF_TOKEN="hf_abcdefghijklmnop",
        NCCL_NET_PLUGIN="password=hunter22",
        DECLARED="1",
    ) as job:
        shown = wait_for(job, "configuration_unfit", 60.0)
        assert "NCCL_ALGO is Tree on rank 1, and Ring on ranks 0,2-3" in shown
        values = configure(job)
        assert values["NCCL_NET_PLUGIN"] == {"password=[hidden]": "0-3"}
        assert "HF_TOKEN" not in values
        assert values["declared lr"] == {"0.1": "0,2-3", "0.2": "1"}
        assert "declared lr is 0.2 on rank 1, and 0.1 on ranks 0,2-3" in shown
        assert "limit memlock" in values
        assert "hunter22" not in str(job.client.configuration(job.name))
        command = module_command("watchtower", "doctor", job.name, "--tower", job.place.tower_url)
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        assert ended.returncode == 1
        assert "NCCL_ALGO (fatal)\n    Ring: ranks 0,2-3\n    Tree: ranks 1\n" in ended.stdout
        assert "[x] every rank of the world size lives" in ended.stdout
        assert "[!] NCCL is set up alike on all ranks" in ended.stdout
        assert "[?] no firewall drops what the ranks send" in ended.stdout


def test_ranks_with_one_configuration_have_no_advisory(tmp_path):
    with launched("advised", tmp_path, FIRST="0", NCCL_ALGO="Ring", LATE="1") as job:
        job.wait_for(lambda verdict: verdict["status"] == "healthy", 30.0)
        until = time.monotonic() + 30.0
        while job.client.configuration(job.name)["known_ranks"] < 4:
            assert time.monotonic() < until
            time.sleep(0.3)
        until = time.monotonic() + 40.0  # longer than any advisory waits for the last reading
        while time.monotonic() < until:
            assert "No advisories" in advise(job)
            time.sleep(1.0)
