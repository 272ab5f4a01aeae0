"""`watchtower-agent check` on this machine, as a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from agent_scene import RecordingTower, clean_environment

from agent.dumpers.python_stacks import find_py_spy
from agent.limits import look_at_limits
from agent.procfs import Proc
from agent.spool import Spool


def check(*options: str) -> tuple[int, dict[str, str]]:
    """Run it; return the exit code and what it says by subject."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "agent", "check", *options],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    lines = [line.partition(": ") for line in done.stdout.splitlines()]
    return done.returncode, {what: said for what, _, said in lines}


def test_where_nothing_is_limited_it_succeeds(tower: RecordingTower, tmp_path: Path) -> None:
    if look_at_limits(Proc(), find_py_spy()).sentences():
        pytest.skip("this user or machine is limited: run it as root with py-spy")
    code, said = check("--tower", tower.url, "--spool-dir", str(tmp_path))
    assert code == 0, said
    assert said["ok  tower"] == f"{tower.url} answers"
    assert said["ok  spool"] == f"{tmp_path}/dumps can be made in {tmp_path}"
    assert list(tmp_path.iterdir()) == []
    assert "py-spy 0." in said["ok  Python stacks"]
    assert set(said) >= {"ok  ranks", "ok  processes", "ok  Yama"}
    assert tower.reports == []  # it does not pretend to be an agent


def test_a_tower_that_is_away_and_a_folder_that_cannot_be_used_are_said(tmp_path: Path) -> None:
    gone = RecordingTower()
    gone.close()
    (tmp_path / "dumps").write_text("a file")
    code, said = check("--tower", gone.url, "--spool-dir", str(tmp_path))
    assert code == 1
    assert "Connection refused" in said["!!  tower"]
    assert "cannot be used" in said["!!  spool"]


def test_a_spool_that_an_agent_uses_is_no_fault(tower: RecordingTower, tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), lambda _: None, lambda _: False)
    spool.open()
    _, said = check("--tower", tower.url, "--spool-dir", str(tmp_path))
    spool.close()
    assert "is used by an agent that runs now" in said["ok  spool"]
    _, said = check("--tower", tower.url, "--spool-dir", str(tmp_path))
    assert said["ok  spool"] == f"{tmp_path}/dumps, 0 dumps wait in it"
    _, said = check("--tower", tower.url)
    assert "none (--spool-dir)" in said["ok  spool"]
