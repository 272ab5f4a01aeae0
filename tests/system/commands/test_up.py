"""`watchtower up`: the whole product on one machine, beside a real job that hangs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.waiting import wait_until
from watchtower.commands.client import TowerClient
from watchtower.service.interpreter import module_command

DEADLINE_S = 20.0


@contextlib.contextmanager
def standing(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    with (folder / "up.err").open("w") as errors:
        process = subprocess.Popen(
            [*module_command("watchtower", "up", "--data-dir", str(folder / "data")), *words],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
        )
    with process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(DEADLINE_S)


def children_of(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def count_agents(url: str) -> int:
    with urlopen(f"{url}/readyz") as answer:
        agents: int = json.load(answer)["agents"]
    return agents


def run_after(pids: list[int]) -> list[int]:
    """Those that still run."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


@pytest.mark.e2e
@pytest.mark.ptrace
@pytest.mark.timeout(240)
def test_it_names_the_rank_of_a_job_on_this_machine(tmp_path: Path):
    with standing(tmp_path, "--port", "0") as process:
        url = process.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), (tmp_path / "up.err").read_text()
        assert "until Ctrl-C" in process.stdout.readline()
        drill = module_command("watchtower", "drill", "sigstop", "--backend", "stdlib")
        done = subprocess.run([*drill], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        client = TowerClient(url)
        incidents = client.list_incidents(drills="true")["items"]
        # Other drills of this machine may be there, too.
        assert "process_stopped" in {each["cause"] for each in incidents}


def test_ctrl_c_ends_both_and_is_no_error(tmp_path: Path):
    with standing(tmp_path, "--port", "0") as process:
        url = process.stdout.readline().strip()
        process.stdout.readline()
        parts = children_of(process.pid)
        assert len(parts) == 2
        wait_until(lambda: count_agents(url) == 1, "the agent reports")
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0, (tmp_path / "up.err").read_text()
        assert run_after(parts) == []
    assert "Traceback" not in (tmp_path / "up.err").read_text()


def test_both_end_with_it_however_it_ends(tmp_path: Path):
    with standing(tmp_path, "--port", "0") as process:
        process.stdout.readline()
        process.stdout.readline()
        parts = children_of(process.pid)
        process.kill()
        wait_until(lambda: not run_after(parts), "both have ended")


def test_the_end_of_one_part_is_told_and_ends_the_other(tmp_path: Path):
    with standing(tmp_path, "--port", "0") as process:
        process.stdout.readline()
        process.stdout.readline()
        parts = children_of(process.pid)
        os.kill(parts[1], signal.SIGKILL)
        assert process.wait(DEADLINE_S) == 1
        assert run_after(parts) == []
    assert "watchtower: the agent has ended" in (tmp_path / "up.err").read_text()


def test_a_port_that_is_taken_is_told_once(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with standing(tmp_path, "--port", str(taken.getsockname()[1])) as process:
            assert process.wait(DEADLINE_S) == 2
            assert process.stdout.read() == ""
    assert "cannot listen on 127.0.0.1 port" in (tmp_path / "up.err").read_text()


def test_the_tower_that_agents_report_to_by_default_is_this_one():
    words = module_command("agent", "run", "--help")
    text = subprocess.check_output([*words], text=True, env={**os.environ, "COLUMNS": "200"})
    assert "http://127.0.0.1:19660" in text
