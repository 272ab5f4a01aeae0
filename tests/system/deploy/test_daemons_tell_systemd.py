"""Real daemons under a watchdog: ready when they work, fed while they do, silent when stuck."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.listening import ServiceManager
from watchtower.service.interpreter import module_command

WATCHDOG_S = 1.0
UNITS = {"agent": "watchtower-agent", "watchtower": "watchtower-tower"}


@pytest.fixture
def manager() -> Iterator[ServiceManager]:
    with ServiceManager(watchdog_s=WATCHDOG_S) as one:
        yield one


def start(manager: ServiceManager, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        return subprocess.Popen(
            module_command(*words),
            env=os.environ | unit_environment(UNITS[words[0]]) | manager.environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )


def unit_environment(unit: str) -> dict[str, str]:
    text = (Path(__file__).parents[3] / f"deploy/systemd/{unit}.service").read_text("utf-8")
    return dict(re.findall(r"^Environment=(\w+)=(.*)$", text, re.MULTILINE))


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait(30)


def assert_fed_until_stuck(manager: ServiceManager, process: subprocess.Popen[bytes]) -> None:
    """Fed again and again; not while it is stopped; then again, and its end is announced."""
    for _ in range(2):
        manager.hear_until("WATCHDOG=1")
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    manager.hear()
    assert manager.hear(2 * WATCHDOG_S) == []
    process.send_signal(signal.SIGCONT)
    manager.hear_until("WATCHDOG=1")
    process.send_signal(signal.SIGTERM)
    manager.hear_until("STOPPING=1")
    process.wait(30)


def test_a_tower_is_ready_when_it_answers_and_fed_while_it_ticks(
    manager: ServiceManager, tmp_path: Path
):
    data = str(tmp_path / "data")
    tower = start(manager, tmp_path, "watchtower", "serve", "--port", "0", "--data-dir", data)
    try:
        manager.hear_until("READY=1")
        url = (tmp_path / "out").read_text().strip()
        with urllib.request.urlopen(url + "/readyz", timeout=30) as answer:
            assert answer.status == 200
        assert "STATUS=0 jobs on 0 nodes" in manager.lines
        assert_fed_until_stuck(manager, tower)
    finally:
        end(tower)


def start_agent(
    manager: ServiceManager, folder: Path, interval_s: float = 3 * WATCHDOG_S
) -> subprocess.Popen[bytes]:
    """Start one whose proc/ can be taken away, at an interval longer than the watchdog waits."""
    (folder / "proc").symlink_to("/proc")
    words = ["run", "--tower", "http://127.0.0.1:9", "--port", "0", "--match", "NOBODY=HAS"]
    return start(
        manager, folder, "agent", *words, "--interval", f"{interval_s:g}", "--root", str(folder)
    )


def test_an_agent_feeds_the_watchdog_while_it_checks_however_seldom(
    manager: ServiceManager, tmp_path: Path
):
    agent = start_agent(manager, tmp_path)
    try:
        manager.hear_until("READY=1")
        assert any(line.startswith("STATUS=0 ranks watched") for line in manager.lines)
        assert_fed_until_stuck(manager, agent)
    finally:
        end(agent)


def test_an_agent_that_cannot_check_starves_the_watchdog(manager: ServiceManager, tmp_path: Path):
    agent = start_agent(manager, tmp_path, interval_s=0.2)
    try:
        manager.hear_until("WATCHDOG=1")
        (tmp_path / "proc").unlink()
        while manager.hear(2 * WATCHDOG_S):
            pass
        assert agent.poll() is None
        (tmp_path / "proc").symlink_to("/proc")
        manager.hear_until("WATCHDOG=1")
    finally:
        end(agent)


def test_the_abort_of_a_watchdog_leaves_every_stack_in_the_log(
    manager: ServiceManager, tmp_path: Path
):
    agent = start_agent(manager, tmp_path)
    try:
        manager.hear_until("READY=1")
        agent.send_signal(signal.SIGABRT)
        assert agent.wait(30) == -signal.SIGABRT
        text = (tmp_path / "err").read_text()
        assert "in _loop" in text
        assert "shipping.py" in text
    finally:
        end(agent)
