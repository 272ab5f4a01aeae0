"""GPUs by the real binding of NVML, over a library of ours with the driver's functions."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import time
from pathlib import Path

import pynvml
import pytest

from agent.children import PACKAGES
from agent.collectors.gpu.collector import Nvml
from tests.system.agent.fake_gpus import PATIENCE_S, SPINS, WORKS, Gpus, wait_until
from watchtower.drills.compiling import find_compiler

pytestmark = [
    pytest.mark.timeout(4 * PATIENCE_S),
    pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler"),
]


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
    assert values["gpu_pattern", "0000:3b:00"] == 1
    assert values["gpu_pattern", "0000:3a:00"] == 2
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
    assert gpus.values()["gpu_pattern", "gpu:0"] == -1


def test_counters_of_errors_are_reported_when_they_increase(gpus: Gpus):
    gpus.be("field.4 0 7\nfield.230 0 2\nremap_pending 0 1\n")
    recovery = gpus.wait_for("pci:0000:3a:00", "gpu_recovery")
    assert (recovery.value, recovery.text) == (2, "the driver recommends: reboot_node")
    rows = ("gpu_remapped_rows", "0000:3a:00", "pending")
    wait_until(lambda: gpus.observed() and rows in gpus.values(), "the rows are read")
    assert gpus.values()[rows] == 1
    assert gpus.values()["gpu_ecc_errors_total", "0000:3a:00", "uncorrected"] == 7
    assert ("pci:0000:3a:00", "gpu_errors.ecc_uncorrected") not in gpus.observed()
    assert gpus.observed()["pci:0000:3a:00", "gpu_remap.pending"].text.endswith("at its next reset")
    gpus.be("field.4 0 9\n")
    found = gpus.wait_for("pci:0000:3a:00", "gpu_errors.ecc_uncorrected")
    assert found.value == 2
    assert found.text == "2 new uncorrected errors of its memory"


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
    assert ("gpu_throttled", "0000:3a:00", "heat") not in values
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


def test_an_xid_is_seen_where_the_kernel_log_is_not(gpus: Gpus):
    gpus.be(WORKS.format(0) + "pid 1 4711\n" + WORKS.format(1))
    gpus.wait_for("pci:0000:3b:00", "gpu_pattern.working")
    gpus.be(WORKS.format(0) + "pid 1 4711\nxid 1 79\n" + WORKS.format(1))
    found = gpus.wait_for("pci:0000:3b:00", "xid.79")
    assert (found.source, found.pid, found.text) == ("nvml", None, "NVML reports Xid 79")
    later = gpus.observed()["pci:0000:3b:00", "xid.79"]
    assert found.age_s <= later.age_s < 60


def test_the_durations_of_calls_are_a_histogram(gpus: Gpus):
    gpus.be("delay.temperature 0 0.2\n" + WORKS.format(0))
    gpus.wait_for("pci:0000:3a:00", "gpu_pattern.working")

    def parts() -> dict[tuple[str, str, str], float]:
        found = gpus.collector.samples(time.time())
        return {(s.labels[0], s.part, s.le): s.value for s in found if s.part}

    seen = parts()
    assert seen["load", "_count", ""] >= 8
    assert seen["load", "_bucket", "+Inf"] == seen["load", "_count", ""]
    assert seen["errors", "_bucket", "0.1"] == seen["errors", "_count", ""] - 1
    assert seen["errors", "_sum", ""] >= 0.2


HOPPER = (3, 4, 5, 6, 38, 45, 52, 59, 94, 230)
"""Fields of a GPU that has the most of them."""


def test_a_gpu_with_everything_has_at_most_36_series(gpus: Gpus):
    fields = "".join(f"field.{number} 0 1\n" for number in HOPPER)
    fields += "links 0 18\nfabric_state 0 3\n"
    units = "sm 0 90\ntensor 0 40\ndram 0 20\nreceived 0 100\nsent 0 50\n"
    gpus.be(f"{fields}{units}pid 0 4711\n" + WORKS.format(0))
    wanted = {
        ("gpu_temperature_celsius", "0000:3a:00"),
        ("gpu_remapped_rows", "0000:3a:00", "failed"),
        ("gpu_tensor_active_ratio", "0000:3a:00"),
        ("gpu_fabric_state", "0000:3a:00"),
    }
    wait_until(lambda: gpus.observed() and wanted <= gpus.values().keys(), "all is read")
    of_gpu = [key for key in gpus.values() if "0000:3a:00" in key]
    assert 30 < len(of_gpu) <= 36, of_gpu


def test_the_links_and_the_fabric_of_a_gpu_are_reported(gpus: Gpus):
    fabric = "fabric_state 0 3\nfabric_health 0 1\n"
    gpus.be("links 0 18\nlinks 1 12\nhas_link_fields 1 0\n" + fabric + WORKS.format(0))
    up, other = (("gpu_nvlinks", f"0000:{bus}:00", "up") for bus in ("3a", "3b"))
    counted = {up, other}  # each GPU is read by a thread of its own
    wait_until(lambda: gpus.observed() and counted <= gpus.values().keys(), "links are counted")
    values = gpus.values()
    assert (values[up], values["gpu_nvlinks", "0000:3a:00", "down"]) == (18, 0)
    assert values[other] == 12  # by a call for each link
    assert values["gpu_fabric_state", "0000:3a:00"] == 3
    assert values["gpu_fabric_health", "0000:3a:00"] == 1
    assert ("pci:0000:3a:00", "gpu_fabric") not in gpus.observed()
    gpus.be("links 0 18\nlinks_up 0 16\n" + WORKS.format(0))
    lost = gpus.wait_for("pci:0000:3a:00", "gpu_nvlink_lost")
    assert (lost.value, lost.text) == (2, "2 of its 18 NVLinks were lost")
    assert lost.age_s < 2


@pytest.mark.parametrize(
    ("script", "text", "state"),
    [
        ("fabric_state 0 1\n", "is not set up yet: is the fabric manager running?", 1),
        ("fabric_state 0 2\nfabric_version 0 33554468\n", "is being set up", 2),
        ("fabric_state 0 3\nfabric_status 0 999\n", "was not set up (error 999)", 4),
        ("fabric_state 0 3\nfabric_health 0 2\n", "is unhealthy", 3),
    ],
)
def test_a_fabric_that_programs_cannot_use_is_reported(gpus: Gpus, script, text, state):
    gpus.be(script + WORKS.format(0))
    found = gpus.wait_for("pci:0000:3a:00", "gpu_fabric")
    assert found.text == f"its NVLink fabric {text}"
    assert gpus.values()["gpu_fabric_state", "0000:3a:00"] == state


def test_pages_and_lifetime_errors_of_the_memory_are_metrics(gpus: Gpus):
    gpus.be("field.5 0 901\nfield.6 0 2\nfield.29 0 4\nfield.31 0 1\n" + WORKS.format(0))
    pages = ("gpu_retired_pages", "0000:3a:00", "pending")
    wait_until(lambda: gpus.observed() and pages in gpus.values(), "the pages are read")
    values = gpus.values()
    assert (values[pages], values["gpu_retired_pages", "0000:3a:00", "single_bit"]) == (1, 4)
    assert values["gpu_ecc_lifetime_errors_total", "0000:3a:00", "corrected"] == 901
    assert values["gpu_ecc_lifetime_errors_total", "0000:3a:00", "uncorrected"] == 2


def test_a_number_that_stands_for_no_value_is_dropped(gpus: Gpus):
    """NVML has a number just below 2**64 for a counter that it does not know."""
    gpus.be(f"field.4 0 {2**64 - 2048}\nfield.3 0 5\n" + WORKS.format(0))
    known = ("gpu_ecc_errors_total", "0000:3a:00", "corrected")
    wait_until(lambda: gpus.observed() and known in gpus.values(), "the counters are read")
    assert ("gpu_ecc_errors_total", "0000:3a:00", "uncorrected") not in gpus.values()


def test_the_reason_of_reduced_clocks_has_a_series(gpus: Gpus):
    gpus.be("reasons 0 64\n" + WORKS.format(0))
    gpus.wait_for("pci:0000:3a:00", "gpu_pattern.throttled")
    values = gpus.values()
    found = {
        key[2]: each for key, each in values.items() if key[:2] == ("gpu_throttled", "0000:3a:00")
    }
    assert found == {"heat": 1, "power_brake": 0, "hardware": 0}


COUNTERS = """
import json, sys, time
sys.path += sys.argv[1:3]
import pynvml
from agent.collectors.gpu.device import SLOW_S, Gpu
pynvml.nvmlInit()
gpu, now = Gpu(pynvml, 0), 0.0
for line in sys.stdin:
    time.sleep(0.25)  # the driver takes six samples a second
    now += SLOW_S
    gpu.read(now)
    print(json.dumps(gpu.show(now)["values"]), flush=True)
"""


def test_the_energy_and_the_samples_of_a_gpu_that_is_frozen_stand_still(gpus: Gpus):
    folders = [str(Path(pynvml.__file__).parent), PACKAGES]
    reader = subprocess.Popen(
        [sys.executable, "-c", COUNTERS, *folders],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"LD_LIBRARY_PATH": str(gpus.folder)},
    )
    with reader:
        commands, answers = reader.stdin, reader.stdout
        assert commands is not None
        assert answers is not None

        def read() -> tuple[float, float]:
            commands.write("\n")
            commands.flush()
            values = json.loads(answers.readline())
            return values["energy_j"], values["sampled_at"]

        gpus.be(WORKS.format(0))
        first, second = read(), read()
        assert second[0] > first[0]
        assert second[1] > first[1]
        gpus.be(WORKS.format(0) + "frozen 0 1\n")
        read()
        assert read() == read()
        commands.close()


def test_gpus_that_the_driver_does_not_show_are_missing(gpus: Gpus):
    devices = gpus.root / "sys/bus/pci/devices"
    for number, name in enumerate(("0x030200", "0x030200", "0x030200", "0x068000", "0x040300")):
        folder = devices / f"0000:{number:02x}:00.0"
        folder.mkdir(parents=True)
        (folder / "class").write_text(f"{name}\n")
        (folder / "vendor").write_text("0x10de\n")
    gpus.be(WORKS.format(0))
    found = gpus.wait_for("node", "gpus_missing")
    assert (found.value, found.text) == (1, "the driver shows 2 of 3 GPUs")
    assert (gpus.values()["gpus_visible",], gpus.values()["gpus_expected",]) == (2, 3)


def test_a_narrow_link_and_mig_are_reported(gpus: Gpus):
    gpus.be("width 0 8\nmig 1 1\nrc.utilization 1 3\n" + WORKS.format(0))
    narrow = gpus.wait_for("pci:0000:3a:00", "gpu_pcie_width")
    assert narrow.text == "its PCIe link has 8 of 16 lanes"
    shared = gpus.wait_for("pci:0000:3b:00", "gpu_pattern.unknown")
    assert shared.text == "MIG is on, so its load is not known"


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


def test_the_sizes_of_the_structures_are_those_of_the_binding():
    sizes = {
        name: ctypes.sizeof(getattr(pynvml, name))
        for name in (
            "c_nvmlFieldValue_t",
            "c_nvmlUtilization_t",
            "nvmlPciInfo_t",
            "c_nvmlGpmMetric_t",
            "c_nvmlSample_t",
            "c_nvmlGpuFabricInfo_v2_t",
            "c_nvmlGpuFabricInfo_v3_t",
        )
    }
    assert sizes == {
        "c_nvmlFieldValue_t": 40,
        "c_nvmlUtilization_t": 8,
        "nvmlPciInfo_t": 68,
        "c_nvmlGpmMetric_t": 40,
        "c_nvmlSample_t": 16,
        "c_nvmlGpuFabricInfo_v2_t": 36,
        "c_nvmlGpuFabricInfo_v3_t": 40,
    }
