"""Started processes end with their drill; the attackers of one are another user's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from watchtower_heartbeat.page import PageView

from agent.procfs import Proc
from agent.ranks.discovery import Discovery
from agent.ranks.process_table import ProcessTable
from watchtower.drills.catalogue.neighbours import USER
from watchtower.drills.children import Child, first_words, start_fixture, wait_for_url
from watchtower.drills.errors import DrillError

SLEEPER = (
    "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(300)'])"
)


def until(condition, deadline_s=60.0):
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_ending_a_child_ends_its_children_too(tmp_path):
    child = Child("sleeper", [sys.executable, "-c", SLEEPER], tmp_path)
    until(lambda: children(child.pid))
    [grandchild] = children(child.pid)
    child.end(patience_s=0)
    assert child.exit_code() == -signal.SIGKILL
    until(lambda: not is_running(grandchild))


def test_a_stopped_child_is_ended(tmp_path):
    child = Child("sleeper", [sys.executable, "-c", "import time; time.sleep(300)"], tmp_path)
    child.signal(signal.SIGSTOP)
    child.end(patience_s=0.05)
    assert child.exit_code() is not None


def test_a_child_ends_with_its_parent():
    parent_code = (
        "import subprocess, sys, time, os;"
        "from watchtower.service.interpreter import with_parent;"
        "child = subprocess.Popen([*with_parent(), sys.executable, '-c',"
        " 'print(1, flush=True); import time; time.sleep(300)'], stdout=subprocess.PIPE);"
        "child.stdout.readline(); print(child.pid, flush=True); time.sleep(300)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent_code], stdout=subprocess.PIPE, text=True
    ) as parent:
        child = int(parent.stdout.readline())
        assert is_running(child)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        until(lambda: not is_running(child))


def test_the_address_is_the_first_line(tmp_path):
    code = "print('watchtower on http://127.0.0.1:4242/', flush=True); import time; time.sleep(300)"
    child = Child("tower", [sys.executable, "-c", code], tmp_path)
    try:
        assert wait_for_url(child, 60) == "http://127.0.0.1:4242"
    finally:
        child.end(patience_s=0)


def test_a_child_that_dies_at_once_is_quoted(tmp_path):
    child = Child("tower", [sys.executable, "-c", "raise SystemExit('no such setting')"], tmp_path)
    with pytest.raises(DrillError) as caught:
        wait_for_url(child, 60)
    assert "no such setting" in caught.value.help_text
    child.end()


MOST = 30
"""Processes that a drill may ask of the machine that it runs on."""
MARK = "WATCHTOWER_TEST_NODE"


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
