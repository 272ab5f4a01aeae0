"""The attackers of a drill are another user's, forge heartbeats, and are gone when it ends."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from watchtower_heartbeat.page import PageView

from agent.procfs import Proc
from agent.ranks.discovery import Discovery
from agent.ranks.process_table import ProcessTable
from watchtower.drills.catalogue.neighbours import USER
from watchtower.drills.children import Child, first_words, start_fixture

MOST = 30
"""Processes that a drill may ask of the machine that it runs on."""
MARK = "WATCHTOWER_TEST_NODE"


def until(condition: Callable[[], object], deadline_s: float = 60.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def start_attack(folder: Path) -> tuple[Child, dict[str, list[int]]]:
    environments = [{MARK: str(folder)}, {MARK: "elsewhere"}]
    plan = {"user": USER, "job": "llama", "ranks": 64, "environments": environments}
    fixture = start_fixture("neighbours.py", [json.dumps(plan)], folder)
    until(lambda: first_words(fixture) is not None)
    return fixture, first_words(fixture) or {}


def users_of(pid: int) -> set[str]:
    words = Path(f"/proc/{pid}/status").read_text().partition("Uid:")[2].partition("\n")[0]
    return set(words.split())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")
def test_they_are_another_user_s_claim_ranks_and_end_with_the_prop(tmp_path: Path) -> None:
    fixture, values = start_attack(tmp_path)
    try:
        assert len(values["pids"]) < MOST
        stay = values["pids"][:8]
        until(lambda: all(users_of(pid) == {str(USER)} for pid in stay))
        proc = Proc()
        discovery = Discovery(
            proc, ProcessTable(proc), match={MARK: str(tmp_path)}, host="n", own_pid=0
        )
        found: dict[str, list[PageView | None]] = {}

        def sees_attack() -> bool:
            for rank in discovery.tick(time.monotonic()):
                assert rank.job.owner == f"uid:{USER}"
                found.setdefault(rank.job.name, []).append(rank.page.read() if rank.page else None)
            return len(found) > 4 and "llama" in found

        until(sees_attack)
        assert any(view is not None and view.world_size == 64 for view in found["llama"])
    finally:
        fixture.end()
    assert fixture.exit_code() == 0
    assert [pid for pid in values["pids"] if Path(f"/proc/{pid}").exists()] == []
