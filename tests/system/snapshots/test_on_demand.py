"""`watchtower stacks JOB` and `watchtower why JOB --now` with a real tower and agent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.system.agent.agent_processes import RunningAgent
from tests.system.snapshots.hung_star import NODE, WATCHTOWER, run, star
from tests.towers import running_tower
from tests.waiting import wait_until
from watchtower.commands.client import NotFoundError, TowerClient

pytestmark = [pytest.mark.e2e, pytest.mark.ptrace, pytest.mark.timeout(240)]

PATIENT = "[detection]\nstartup_grace_s = 3600\nno_heartbeat_sample_s = 3600\n"


def test_a_job_that_is_not_suspect_is_dumped_on_demand(tmp_path: Path):
    (tmp_path / "tower.toml").write_text(PATIENT)
    (tmp_path / "operators").write_text("operator-secret-0123456789abcdef\n")
    (tmp_path / "readers").write_text("reader-secret-0123456789abcdef\n")
    (tmp_path / "agents").write_text("agent-secret-0123456789abcdef\n")
    for name in ("operators", "readers", "agents"):
        (tmp_path / name).chmod(0o600)
    tokens = [f"--{kind}-token-file={tmp_path / kind}s" for kind in ("operator", "reader", "agent")]
    with (
        running_tower(tmp_path, f"--config={tmp_path / 'tower.toml'}", *tokens) as tower,
        star(size=3, per_node=3) as job,
    ):
        match = ("--match", f"{NODE}={job.mark_of(0)}", "--token-file", str(tmp_path / "agents"))
        agent = RunningAgent(tower.url, *match, log=tmp_path / "agent.log")
        try:
            job.hang(1)

            def ask(*words: str, who: str = "operators"):
                token = ("--token-file", str(tmp_path / who))
                return run(*WATCHTOWER, *words, "--tower", tower.url, *token)

            def seen() -> bool:
                done = ask("jobs", "--json")
                items = json.loads(done.stdout)["items"] if done.returncode == 0 else []
                return [one["world_size"] for one in items] == [3]

            wait_until(seen, "the job is reported", 60)
            done = ask("why", "star", "--now", "--json")
            assert done.returncode == 0, done
            verdict = json.loads(done.stdout)
            assert (verdict["status"], verdict["incident"]) == ("healthy", None)
            assert [suspect["rank"] for suspect in verdict["suspects"]] == [1]
            assert "read_shard" in verdict["suspects"][0]["where"]

            done = ask("stacks", "star")
            assert done.returncode == 0, done
            assert "rank 1 (1), innermost frame first:\n    read_shard" in done.stdout
            done = ask("stacks", "star", "--rank", "1", "--outermost", "--all-threads")
            lines = [line.split("(")[0].strip() for line in done.stdout.splitlines()]
            assert lines[:4] == ["outermost frame first:", "<module>", "train", "read_shard"], done
            done = ask("why", "star", "--now")
            assert "Rank 1 " in done.stdout, done

            refused = ask("stacks", "star", who="readers")
            assert refused.returncode == 2, refused
            assert "operator" in refused.stderr
            unknown = ask("stacks", "bert")
            assert unknown.returncode == 4, unknown
            assert ask("why", "--now").returncode == 2
        finally:
            agent.close()


def test_a_tower_without_tokens_answers_too(tmp_path: Path):
    with running_tower(tmp_path) as tower:
        for words in (("stacks", "bert"), ("why", "bert", "--now")):
            done = run(*WATCHTOWER, *words, "--tower", tower.url)
            assert (done.returncode, "bert" in done.stderr) == (4, True), done
        client = TowerClient(tower.url)
        for ask in (client.diagnose_now, client.diagnose_now_text):
            with pytest.raises(NotFoundError, match="no live rank"):
                ask("bert")
        with pytest.raises(NotFoundError, match="no live rank"):
            client.stacks("bert", 3, all_threads=True)
