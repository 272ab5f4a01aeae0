"""GPUs by the real binding of NVML, over a library of ours with the driver's functions."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.collectors.nvml import Nvml
from agent.collectors.nvml_child import NAME
from agent.collectors.nvml_process import CHILD, find_abandoned
from tests.agent.agent_scene import RecordingTower, wait_until
from tests.system.agent.agent_processes import STOPS_S, Victim
from watchtower.drills.compiling import QUEUED, compile_library, find_compiler
from watchtower.wire.observations import Observation

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")

LIBRARY = QUEUED / "nvml.c"
INTERVAL_S = 0.2
"""Seconds between two reports of an agent of the tests."""

SPINS = "utilization {0} 100\npower {0} 95\n"
WORKS = "utilization {0} 99\nmemory_utilization {0} 35\npower {0} 610\n"


class Gpus:
    """A driver of ours below a root of its own, and a collector that reads it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "root"
        (self.root / "dev").mkdir(parents=True)
        (self.root / "dev/nvidiactl").touch()
        (self.root / "proc").symlink_to("/proc")
        self.script = folder / "script"
        self.script.touch()
        self.collector = Nvml(str(self.root))

    def build(self, *flags: str) -> None:
        compile_library(
            LIBRARY, self.folder / "libnvidia-ml.so.1", f'-DSCRIPT="{self.script}"', *flags
        )

    def be(self, text: str) -> None:
        """Replace the script: from now on the GPUs are like this."""
        new = self.folder / "new"
        new.write_text(text)
        new.replace(self.script)

    def observed(self) -> dict[tuple[str, str], Observation]:
        found = self.collector.collect(time.monotonic())
        return {(each.subject, each.name): each for each in found}

    def wait_for(self, subject: str, name: str) -> Observation:
        return wait_until(lambda: self.observed().get((subject, name)), f"{name} of {subject}")

    def values(self) -> dict[tuple[str, ...], float]:
        return {
            (sample.spec.name.removeprefix("watchtower_"), *sample.labels): sample.value
            for sample in self.collector.samples(time.time())
        }


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    made = Gpus(tmp_path)
    made.build()
    yield made
    made.collector.stop()


def test_each_gpu_has_its_pattern_its_process_and_its_metrics(gpus: Gpus):
    gpus.be(SPINS.format(0) + WORKS.format(1) + "pid 1 4711\npid 1 4712\n")
    spins = gpus.wait_for("pci:0000:3a:00", "gpu_pattern.spinning")
    assert (spins.value, spins.pid) == (0, None)
    assert spins.text == "100% busy, memory 0%, 95 W of 700 W"
    works = gpus.wait_for("pci:0000:3b:00", "gpu_pattern.working")
    assert (works.value, works.pid) == (1, 4711)
    assert gpus.observed()["pci:0000:3b:00", "gpu_process.4712"].pid == 4712
    values = gpus.values()
    assert values["gpus_visible",] == 2
    assert values["nvml_stuck_seconds",] == 0
    assert values["gpu_utilization_ratio", "0000:3b:00"] == 0.99
    assert values["gpu_power_watts", "0000:3a:00"] == 95
    assert values["gpu_pattern", "0000:3b:00", "working"] == 1
    assert values["gpu_pattern", "0000:3b:00", "idle"] == 0
    assert values["gpu_processes", "0000:3b:00"] == 2
    assert values["gpu_info", "0000:3a:00", "0", "GPU-0", "Stand-in 3000", "999.1"] == 1
    assert gpus.collector.gap() == ""
    assert gpus.collector.can_read


def test_a_call_that_never_returns_is_named_and_the_other_gpus_are_read_on(gpus: Gpus):
    gpus.be(SPINS.format(0) + WORKS.format(1) + "pid 0 4711\n")
    gpus.wait_for("pci:0000:3a:00", "gpu_pattern.spinning")
    gpus.be("hang.power 0 1\n" + WORKS.format(1))
    stuck = gpus.wait_for("pci:0000:3a:00", "nvml_stuck")
    assert stuck.text == "nvmlDeviceGetPowerUsage of GPU 0 has not returned"
    assert stuck.age_s >= 3
    assert stuck.pid == 4711
    assert "nvmlDeviceGetPowerUsage of GPU 0 has not returned" in gpus.collector.gap()
    wait_until(
        lambda: ("pci:0000:3a:00", "gpu_pattern.spinning") not in gpus.observed(),
        "the old pattern of the stuck GPU is not shown",
    )
    assert gpus.observed()["pci:0000:3b:00", "gpu_pattern.working"].age_s < 3
    assert gpus.values()["nvml_stuck_seconds",] > 3
    wait_until(
        lambda: gpus.observed() and ("gpu_power_watts", "0000:3a:00") not in gpus.values(),
        "old values of the stuck GPU are not shown",
    )
    began = time.monotonic()
    gpus.collector.stop()
    assert time.monotonic() - began < 1


def test_a_driver_that_does_not_answer_at_all_is_reported(gpus: Gpus):
    gpus.be("hang.init 0 1\n")
    assert gpus.wait_for("node", "nvml_stuck").text == "nvmlInit of the driver has not returned"
    assert "nvmlInit of the driver has not returned" in gpus.collector.gap()
    assert not gpus.collector.can_read


def test_a_lost_gpu_is_lost_for_its_process_and_comes_back(gpus: Gpus):
    gpus.be(WORKS.format(0) + "pid 0 4711\n")
    gpus.wait_for("pci:0000:3a:00", "gpu_pattern.working")
    gpus.be(WORKS.format(0) + "rc 0 15\n")
    lost = gpus.wait_for("pci:0000:3a:00", "gpu_lost")
    assert lost.text == "NVML cannot reach the GPU"
    assert gpus.observed()["pci:0000:3a:00", "gpu_pattern.lost"].pid == 4711
    gpus.be(WORKS.format(0))
    gpus.wait_for("pci:0000:3a:00", "gpu_pattern.working")
    assert ("pci:0000:3a:00", "gpu_lost") not in gpus.observed()


def test_a_gpu_that_may_not_be_read_is_unknown_and_not_lost(gpus: Gpus):
    gpus.be("rc.handle 0 4\n" + WORKS.format(1))
    gpus.wait_for("pci:0000:3b:00", "gpu_pattern.working")
    assert {name for _, name in gpus.observed()} == {"gpu_pattern.working"}
    assert gpus.values()["gpu_pattern", "gpu:0", "unknown"] == 1


def test_counters_of_errors_are_reported_when_they_increase(gpus: Gpus):
    gpus.be("field.4 0 7\nfield.230 0 2\nremap_pending 0 1\n")
    recovery = gpus.wait_for("pci:0000:3a:00", "gpu_recovery")
    assert (recovery.value, recovery.text) == (2, "the driver recommends: reboot_node")
    rows = ("gpu_remapped_rows", "0000:3a:00", "pending")
    wait_until(lambda: gpus.observed() and rows in gpus.values(), "the rows are read")
    assert gpus.values()[rows] == 1
    assert gpus.values()["gpu_ecc_errors_total", "0000:3a:00", "uncorrected"] == 7
    assert ("pci:0000:3a:00", "gpu_errors.ecc_uncorrected") not in gpus.observed()
    gpus.be("field.4 0 9\n")
    found = gpus.wait_for("pci:0000:3a:00", "gpu_errors.ecc_uncorrected")
    assert found.value == 2
    assert found.text == "2 uncorrected errors of its memory since the agent started"


@pytest.mark.parametrize(
    ("script", "gap"),
    [
        ("rc.init 0 9\n", ""),
        ("count 0 0\n", ""),
        ("rc.init 0 18\n", "reboot the node"),
        ("rc.init 0 999\n", "NVML cannot be used (error 999)"),
    ],
)
def test_a_node_without_gpus_is_an_ordinary_node(gpus: Gpus, script: str, gap: str):
    gpus.be(script)
    wait_until(
        lambda: gpus.observed() == {} and (gpus.collector.is_absent or gpus.collector.gap()),
        "the state of the node is known",
    )
    assert gpus.collector.is_absent is (gap == "")
    assert gap in gpus.collector.gap()
    assert gpus.values() == {}


def test_an_old_driver_without_some_functions_is_read_without_them(gpus: Gpus):
    gpus.build("-DOLD_DRIVER")
    gpus.be(WORKS.format(0) + "rc.memory 0 3\n")
    gpus.wait_for("pci:0000:3a:00", "gpu_pattern.working")
    values = gpus.values()
    assert ("gpu_throttled", "0000:3a:00") not in values
    assert ("gpu_memory_used_bytes", "0000:3a:00") not in values
    assert values["gpu_temperature_celsius", "0000:3a:00"] == 40


def test_a_value_whose_read_fails_does_not_look_new(gpus: Gpus):
    gpus.be("temperature 0 61\nfield.230 0 2\n" + WORKS.format(0))
    gpus.wait_for("pci:0000:3a:00", "gpu_recovery")
    heat = ("gpu_temperature_celsius", "0000:3a:00")
    assert gpus.values()[heat] == 61
    gpus.be("temperature 0 61\nrc.temperature 0 999\nrc.fields 0 999\n" + WORKS.format(0))
    wait_until(lambda: gpus.observed() and heat not in gpus.values(), "the old value is not shown")
    assert ("pci:0000:3a:00", "gpu_recovery") not in gpus.observed()
    assert gpus.values()["gpu_utilization_ratio", "0000:3a:00"] == 0.99


def test_counters_of_the_units_are_read_where_the_gpu_has_them(gpus: Gpus):
    gpus.be("utilization 0 100\npower 0 650\ntensor 0 0.4\ndram 0 0.2\n" + WORKS.format(1))
    gpus.wait_for("pci:0000:3a:00", "gpu_pattern.spinning")
    values = gpus.values()
    assert values["gpu_tensor_active_ratio", "0000:3a:00"] == pytest.approx(0.004)
    assert values["gpu_dram_active_ratio", "0000:3a:00"] == pytest.approx(0.002)
    assert ("gpu_tensor_active_ratio", "0000:3b:00") not in values


def test_without_a_driver_no_child_is_started(tmp_path: Path):
    collector = Nvml(str(tmp_path))
    assert list(collector.collect(time.monotonic())) == []
    assert collector.is_absent
    assert (collector.gap(), list(collector.samples(time.time()))) == ("", [])


def test_the_child_ends_with_its_agent_and_is_no_abandoned_one(gpus: Gpus):
    gpus.be(WORKS.format(0))
    gpus.wait_for("pci:0000:3a:00", "gpu_pattern.working")
    child = gpus.collector._process._child
    assert child is not None
    assert os.fsencode(CHILD) in Path(f"/proc/{child.pid}/cmdline").read_bytes().split(b"\0")
    assert find_abandoned("/proc") is None  # its agent lives
    gpus.collector.stop()
    child.wait(timeout=10)


STARTER = """
import ctypes, os, signal, sys, time
from agent.collectors.nvml import Nvml
PR_SET_CHILD_SUBREAPER = 36
if {subreaper}:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
agent = os.fork()
if agent == 0:
    collector = Nvml({root!r})
    while not collector.gap():
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

    wait_until(lambda: count("gpu_pattern.working") == 8, "all GPUs are reported")
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


def test_the_sizes_of_the_structures_are_those_of_the_binding():
    pynvml = pytest.importorskip("pynvml")
    sizes = {
        name: ctypes.sizeof(getattr(pynvml, name))
        for name in (
            "c_nvmlFieldValue_t",
            "c_nvmlUtilization_t",
            "nvmlPciInfo_t",
            "c_nvmlGpmMetric_t",
        )
    }
    assert sizes == {
        "c_nvmlFieldValue_t": 40,
        "c_nvmlUtilization_t": 8,
        "nvmlPciInfo_t": 68,
        "c_nvmlGpmMetric_t": 40,
    }
