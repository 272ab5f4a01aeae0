"""A job hangs right now, and nothing is installed: no heartbeats, no agent, no tower."""

from __future__ import annotations

import contextlib
import json
import shlex
from contextlib import closing
from pathlib import Path

import pytest

from agent.dumpers.perf_clock import find_sampling_error
from tests.system.agent.agent_processes import Victim, clean_environment, new_mark
from tests.system.snapshots.hung_star import AGENT, NODE, diagnose, run, star

pytestmark = [pytest.mark.e2e, pytest.mark.ptrace, pytest.mark.timeout(240)]


def verdicts(done) -> list[dict]:
    assert done.stderr == "", done
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_hung_job_on_two_nodes_is_diagnosed_from_two_files(tmp_path: Path):
    files = [tmp_path / "n0.json", tmp_path / "n1.json"]
    with star(size=6, per_node=3) as job:
        job.hang(4)
        lines = [job.snapshot(node, "-o", str(file)) for node, file in enumerate(files)]
    assert [each.returncode for each in lines] == [0, 0], lines
    assert "odd rank: 4" in lines[1].stdout
    assert "read_shard" in lines[1].stdout
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)

    done = diagnose(files, "--json", "--exit-code")
    (verdict,) = verdicts(done)
    assert done.returncode == 1
    assert (verdict["job"], verdict["status"], verdict["cause"]) == (
        "star",
        "suspect",
        "dataloader_stall",
    )
    assert [(s["rank"], s["node"], s["pid"]) for s in verdict["suspects"]] == [
        (4, "n1", job.ranks[4].pid)
    ]
    assert "read_shard" in verdict["suspects"][0]["where"]
    assert verdict["waiting"] == "0-3,5"

    (alone,) = verdicts(diagnose(files[:1], "--json"))
    assert not {0, 1, 2} & {suspect["rank"] for suspect in alone["suspects"]}
    assert any("3-5" in gap and "no snapshot" in gap for gap in alone["missing_evidence"])


def test_a_job_that_steps_is_healthy_and_standard_output_is_a_file(tmp_path: Path):
    with star(size=3, per_node=3) as job:
        until_named = job.snapshot(0, "-o", "-")
    assert until_named.returncode == 0, until_named
    assert "job star: ranks 0-2 of 3" in until_named.stderr
    file = tmp_path / "all.json"
    file.write_text(until_named.stdout)
    assert file.read_text().count("\n") == 1
    done = diagnose([file], "--json")
    assert done.returncode == 0, done
    assert json.loads(done.stdout)["job"] == "star"
    if not find_sampling_error():
        _, second = json.loads(file.read_text())["dumps"]
        watched = [each["native"]["ran_python"] for each in second["ranks"]]
        assert None not in watched


def test_a_node_without_ranks_has_no_file(tmp_path: Path):
    file = tmp_path / "n0.json"
    with star(size=2, per_node=2) as job:
        done = job.snapshot(7, "-o", str(file))
    assert (done.returncode, done.stdout, file.exists()) == (1, "", False)
    assert "no rank was found" in done.stderr


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path):
    with star(size=2, per_node=2) as job:
        done = job.snapshot(0, "-o", str(tmp_path / "missing" / "n0.json"))
    assert done.returncode == 5, done
    assert "cannot write" in done.stderr


def test_heartbeats_are_used_if_there_are_some(tmp_path: Path):
    mark, file = new_mark(), tmp_path / "n0.json"
    names = {"WATCHTOWER_TEST": mark, "WATCHTOWER_JOB": "llama", "WORLD_SIZE": "2"}
    with contextlib.ExitStack() as stack:
        for rank in range(2):
            victim = stack.enter_context(closing(Victim({**names, "RANK": str(rank)})))
            victim.do("for step in range(3): beat(step)")
        match = ("--match", f"WATCHTOWER_TEST={mark}")
        taken = run(*AGENT, "snapshot", *match, "-o", str(file))
        assert taken.returncode == 0, taken
        snapshot = json.loads(file.read_text())
        beats = [rank["beat"] for rank in snapshot["reports"][1]["ranks"]]
        assert [beat["step"] for beat in beats] == [2, 2]
        (verdict,) = verdicts(diagnose([file], "--json"))
        # On a slow machine, the heartbeats are older than in a healthy job.
        assert verdict["status"] == ("suspect" if beats[0]["age_s"] >= 5 else "healthy")
        assert verdict["step"] == 2


def test_a_shell_with_the_environment_of_a_rank_is_no_rank(tmp_path: Path):
    file = tmp_path / "n0.json"
    with star(size=3, per_node=3) as job:
        job.hang(1)
        # As `kubectl exec POD -- sh -c ...` in a pod that has its rank in its environment.
        rank = {"RANK": "0", "WORLD_SIZE": "3", "WATCHTOWER_JOB": "star", NODE: job.mark_of(0)}
        command = shlex.join([*AGENT, "snapshot", "--match", f"{NODE}={job.mark_of(0)}"])
        environment = clean_environment(**rank)
        done = run("sh", "-c", f"{command} -o {file}; true", environment=environment)
        pids = [each.pid for each in job.ranks]
    assert done.returncode == 0, done
    ranks = json.loads(file.read_text())["reports"][1]["ranks"]
    assert sorted(rank["pid"] for rank in ranks) == sorted(pids)
