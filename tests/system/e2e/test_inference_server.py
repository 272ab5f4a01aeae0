"""Processes as those of vLLM: a worker on which a request waits is named, and an idle server is
idle.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.system.e2e.found_groups import DEADLINE_S, Tower, watched
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.ptrace, pytest.mark.timeout(300)]

HOST = os.uname().nodename
SERVES, HANGS = f"{HOST}.vllm-8011", f"{HOST}.vllm-8012"
WORKERS, CULPRIT = 3, 1
REQUESTS = "30"


def test_a_worker_on_which_a_request_waits_is_named_and_an_idle_server_is_idle(
    tmp_path: Path,
) -> None:
    with watched(tmp_path) as tower:
        tower.start("serve.py", "--port", "8011", "--requests", REQUESTS)
        tower.start("serve.py", "--port=8012", "--requests", REQUESTS, "--culprit", str(CULPRIT))
        wait_until(lambda: tower.verdict(HANGS)["incident"], "an incident", DEADLINE_S)
        verdict = tower.verdict(HANGS)
        (suspect,) = verdict["suspects"]
        assert suspect["rank"] == CULPRIT
        assert f"Rank {CULPRIT} (Worker_TP{CULPRIT}, " in verdict["summary"]
        assert suspect["where"].endswith("in load_adapter")
        assert verdict["waiting"] == "0,2-3", "the engine waits for the answer, too"
        wait_until(lambda: is_idle(tower), "the other server is idle", DEADLINE_S)
        assert tower.client.incidents(SERVES) == []


def is_idle(tower: Tower) -> bool:
    return tower.progress(SERVES) == ("healthy", "idle")
