"""A rank written in C (the example of docs/heartbeat-page.md), watched by a real agent."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.system.agent.agent_processes import REPOSITORY
from tests.waiting import wait_until

COMPILER = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), "")
SOURCE = REPOSITORY / "tests/system/heartbeat/programs" / "trainer.c"


@pytest.mark.skipif(not COMPILER, reason="no C compiler: apt install gcc libc6-dev")
def test_a_rank_in_c_is_reported_with_step_phase_and_last_words(
    tower, start, run_agent, tmp_path
) -> None:
    binary = tmp_path / "trainer"
    subprocess.run([COMPILER, "-std=c11", SOURCE, "-o", binary], check=True, timeout=100)
    rank = start([str(binary)], RANK="3", WORLD_SIZE="8", WATCHTOWER_JOB="llama")
    rank.do("beat 1")
    run_agent(tower.url)

    def beat() -> dict[str, object]:
        return (tower.ranks().get(3) or {}).get("beat") or {}

    wait_until(lambda: beat().get("step") == 1, "its first step is reported")
    found = tower.ranks()[3]
    assert (found["job"], found["pid"], found["world_size"]) == ("llama", rank.pid, 8)
    rank.do("beat 5")
    rank.do("phase checkpoint")
    wait_until(lambda: beat().get("phase") == "checkpoint", "its phase is reported")
    assert beat()["step"] == 5
    rank.do("end 3 7")
    assert rank.process.stdin is not None
    rank.process.stdin.close()
    ended = wait_until(lambda: (tower.ranks().get(3) or {}).get("ended"), "its end is reported")
    assert (ended["kind"], ended["code"]) == ("exit", 7)
