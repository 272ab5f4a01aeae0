"""The process that reads the GPUs: its end, one that was left behind, and the agent beside it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.children import PACKAGES
from agent.collectors.gpu.program import NAME
from agent.collectors.gpu.reading import find_abandoned
from tests.agent.agent_scene import RecordingTower
from tests.system.agent.agent_processes import STOPS_S, Victim
from tests.system.agent.fake_gpus import SPINS, WORKS, Gpus
from tests.waiting import PATIENCE_S, wait_until
from watchtower.drills.compiling import find_compiler

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")

INTERVAL_S = 0.2
"""Seconds between two reports of an agent of the tests."""


def test_the_child_ends_with_its_agent_and_is_no_abandoned_one(gpus: Gpus):
    gpus.be(WORKS.format(0))
    gpus.wait_for("pci:0000:3a:00", "gpu_pattern.working")
    child = gpus.collector._process._child
    assert child is not None
    assert os.fsencode(PACKAGES) in Path(f"/proc/{child.pid}/cmdline").read_bytes()
    assert find_abandoned("/proc") is None  # its agent lives
    gpus.collector.stop()
    child.wait(timeout=10)


STARTER = """
import ctypes, os, signal, sys, time
from agent.collectors.gpu.collector import Nvml
PR_SET_CHILD_SUBREAPER = 36
if {subreaper}:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
agent = os.fork()
if agent == 0:
    collector = Nvml({root!r})
    while collector._process._child is None or not collector.gap():
        list(collector.collect(time.monotonic()))
        time.sleep(0.1)
    os.kill(collector._process._child.pid, signal.SIGSTOP)  # as in a call that cannot be ended
    os._exit(0)
os.waitpid(agent, 0)
print("ended", flush=True)
if {subreaper}:
    time.sleep(600)
"""


@pytest.mark.parametrize("subreaper", [False, True])
def test_the_reader_of_an_agent_that_ended_is_found_and_no_second_one_is_started(
    gpus: Gpus, subreaper: bool
):
    """Its new parent is init, or a process that asked for orphans, such as `systemd --user`."""
    gpus.be("hang.all 0 1\nhang.all 1 1\n")
    program = STARTER.format(root=str(gpus.root), subreaper=subreaper)
    left = None
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as starter:
        try:
            assert starter.stdout is not None
            assert starter.stdout.readline() == "ended\n"
            left = wait_until(lambda: find_abandoned("/proc"), "the reader is found")
            assert gpus.observed() == {}
            assert f"still in a call of the driver (pid {left})" in gpus.collector.gap()
            assert gpus.collector._process._child is None
        finally:
            starter.kill()
            if left is not None:
                os.kill(left, signal.SIGKILL)


LEADER_ENDS = """
import ctypes, pathlib, threading, time
pathlib.Path("/proc/self/comm").write_text("{name}1")
threading.Thread(target=time.sleep, args=(600,)).start()
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_reader_of_which_only_a_thread_is_left_is_found():
    """A process that ends while a thread is in the driver is a zombie without a command."""
    with subprocess.Popen(
        [sys.executable, "-c", LEADER_ENDS.format(name=NAME)], stdout=subprocess.PIPE
    ) as left:
        try:
            stat = Path(f"/proc/{left.pid}/stat")
            wait_until(lambda: b") Z " in stat.read_bytes(), "the first thread has ended")
            assert Path(f"/proc/{left.pid}/cmdline").read_bytes() == b""
            assert find_abandoned("/proc") == left.pid
        finally:
            left.kill()


def test_an_agent_reports_on_time_and_stops_in_time_while_one_of_eight_gpus_hangs(
    gpus: Gpus, start, run_agent, tower: RecordingTower
):
    start(RANK="0", WORLD_SIZE="1")
    works = "count 0 8\n" + "".join(WORKS.format(number) for number in range(8))
    gpus.be(works)
    agent = run_agent(tower.url, "--root", str(gpus.root), LD_LIBRARY_PATH=str(gpus.folder))

    def count(name: str) -> int:
        last = tower.reports[-1]["observations"] if tower.reports else []
        return sum(each["name"] == name for each in last)

    wait_until(lambda: count("gpu_pattern.working") == 8, "all GPUs are reported", 2 * PATIENCE_S)
    gpus.be(works + "hang.power 3 1\n")
    wait_until(lambda: count("nvml_stuck") == 1, "the stuck call is reported")
    wait_until(lambda: count("gpu_pattern.working") == 7, "the GPU has no pattern any more")
    began, reports = time.monotonic(), len(tower.reports)
    wait_until(lambda: len(tower.reports) >= reports + 20, "reports go on")
    took_s = time.monotonic() - began
    assert took_s < 20 * 2 * INTERVAL_S, took_s
    assert count("gpu_pattern.working") == 7
    stuck = [each for each in tower.reports[-1]["observations"] if each["name"] == "nvml_stuck"]
    assert stuck[0]["text"] == "nvmlDeviceGetPowerUsage of GPU 3 has not returned"
    began = time.monotonic()
    agent.process.terminate()
    agent.process.wait(STOPS_S)
    assert time.monotonic() - began < STOPS_S / 2


def test_an_agent_joins_a_gpu_to_the_rank_that_uses_it(
    gpus: Gpus, start, run_agent, tower: RecordingTower
):
    victim: Victim = start(RANK="0", WORLD_SIZE="1")
    gpus.be(SPINS.format(0) + f"pid 0 {victim.pid}\n")
    run_agent(tower.url, "--root", str(gpus.root), LD_LIBRARY_PATH=str(gpus.folder))

    def seen() -> list[dict[str, object]]:
        last = tower.reports[-1]["observations"] if tower.reports else []
        return [each for each in last if each["name"] == "gpu_pattern.spinning"]

    (found,) = wait_until(seen, "the pattern is reported")
    assert found["pid"] == victim.pid
