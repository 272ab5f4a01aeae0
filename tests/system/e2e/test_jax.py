"""Processes of real JAX: the one that hangs is named, whoever knows its rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.e2e.found_groups import DEADLINE_S, watched
from tests.system.frameworks import needs
from tests.waiting import wait_until

CULPRIT = 2

pytestmark = [
    *needs("jax"),
    pytest.mark.e2e,
    pytest.mark.ptrace,
]


@pytest.mark.parametrize("mode", ["variables", "arguments"])
def test_the_process_that_hangs_is_named(mode: str, tmp_path: Path) -> None:
    name = f"jax-{mode}"
    with watched(tmp_path) as tower:
        pids = tower.start("jax_trainers.py", mode, WATCHTOWER_JOB=name)
        wait_until(lambda: tower.verdict(name)["incident"], "an incident", DEADLINE_S)
        verdict = tower.verdict(name)
        assert [each["pid"] for each in verdict["suspects"]] == [pids[CULPRIT]]
        assert verdict["suspects"][0]["rank"] == CULPRIT
        assert "load_batch" in verdict["suspects"][0]["where"]
        assert verdict["cause"] in {"lock_deadlock", "dataloader_stall"}
        assert tower.client.job(name)["world_size"] == len(pids)
