"""GPUs as the reader prints them, by value."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.collectors.gpu.collector import GpuCount, Nvml
from agent.collectors.gpu.reading import NOT_INSTALLED, GpuReading
from agent.collectors.gpu.report import (
    ENDED_FOR_S,
    MAX_ENDED,
    GpuState,
    observe_fabric,
    observe_gpu,
)
from agent.procfs import Proc
from watchtower.wire.observations import Observation

NOWHERE = Proc("/nowhere")


def test_a_gpu_whose_first_read_has_not_ended_is_not_reported():
    half_read = GpuReading(index=0, values={"recovery_action": 2.0}, processes=[1, 2])
    gpu = GpuState(half_read)
    assert list(observe_gpu(gpu, 9.0, 10.0, NOWHERE)) == []
    gpu.take(GpuReading(index=0, values=half_read.values, processes=[1, 2], age_s=0.5), 11.0)
    names = [each.name for each in observe_gpu(gpu, 11.0, 11.0, NOWHERE)]
    assert names == ["gpu_pattern.unknown", "gpu_process.2", "gpu_recovery"]


def test_a_process_that_has_ended_is_reported_with_its_gpu_for_a_minute():
    gpu = GpuState(GpuReading(index=0))
    gpu.take(GpuReading(index=0, processes=[4711], age_s=0.0), 100.0)
    for now in (101.0, 101.0 + ENDED_FOR_S):
        gpu.take(GpuReading(index=0, processes=[], age_s=0.0), now)
        found = [e for e in observe_gpu(gpu, now, now, NOWHERE) if e.pid == 4711]
        assert [(e.name, e.age_s) for e in found] == (
            [("gpu_process.4711", 1.0)] if now == 101.0 else []
        )


def test_of_many_ended_processes_the_latest_are_remembered():
    gpu = GpuState(GpuReading(index=0))
    for pid in range(1, 100):
        gpu.take(GpuReading(index=0, processes=[pid], age_s=0.0), 100.0)
    assert [pid for pid, _ in gpu.ended(100.0)] == list(range(100 - MAX_ENDED, 99))


def add_process(root: Path, pid: int, ppid: int, session: int) -> None:
    folder = root / f"proc/{pid}"
    folder.mkdir(parents=True)
    rest = " ".join(["0"] * 46)
    (folder / "stat").write_text(f"{pid} (pt main) S {ppid} {pid} {session} {rest}\n")
    (folder / "comm").write_text("pt main\n")


def test_a_process_that_its_job_left_on_a_gpu_is_reported(tmp_path: Path):
    add_process(tmp_path, 40, 1, 39)  # the launcher, 39, has ended
    add_process(tmp_path, 50, 49, 49)  # its launcher lives
    add_process(tmp_path, 49, 1, 49)  # a service
    proc = Proc(str(tmp_path))
    for processes, wanted in (([40, 50, 49, 77], 1), ([50, 49], 0)):
        gpu = GpuState(GpuReading(index=0), 10.0)
        gpu.take(GpuReading(index=0, processes=processes, age_s=0.5), 11.0)
        found = [e for e in observe_gpu(gpu, 11.0, 11.0, proc) if e.name == "gpu_orphan"]
        assert len(found) == wanted
        for each in found:
            assert (each.pid, each.value) == (None, 1)
            assert each.text == "pid 40 (pt main) uses it, and its job has ended"


@pytest.mark.parametrize("state", sorted(NOT_INSTALLED))
def test_a_node_with_the_driver_and_without_a_library_reports_what_is_missing(state: str):
    collector = Nvml("/nowhere")
    collector._process.state = state
    assert not collector.is_absent
    assert collector.gap().startswith("GPUs: the driver is there, and ")


def test_a_node_without_the_driver_reports_nothing():
    collector = Nvml("/nowhere")
    assert list(collector.collect(0.0)) == []
    assert collector.is_absent
    assert collector.gap() == ""


def errors_of(gpu: GpuState, now: float) -> dict[str, Observation]:
    found = observe_gpu(gpu, now, now, NOWHERE)
    return {each.name: each for each in found if each.name.startswith(("gpu_errors", "gpu_ecc"))}


def take(gpu: GpuState, now: float, **values: float) -> None:
    gpu.take(GpuReading(index=0, values=values, processes=[7], age_s=0.0), now)


def test_errors_of_the_memory_have_a_rate_while_they_rise():
    gpu = GpuState(GpuReading(index=0))
    for at in range(100, 131):
        take(gpu, at, ecc_corrected=5_000_000 + 170_000 * (at // 10))
    found = errors_of(gpu, 132.0)
    assert set(found) == {"gpu_errors.ecc_corrected", "gpu_ecc.corrected"}
    total, rate = found["gpu_errors.ecc_corrected"], found["gpu_ecc.corrected"]
    assert (total.value, total.pid) == (510_000, 7)
    assert (rate.value, rate.unit, rate.pid, rate.age_s) == (17_000, "1/s", 7, 2)
    assert set(errors_of(gpu, 161.0)) == {"gpu_errors.ecc_corrected"}


def test_an_old_total_and_a_single_jump_have_no_high_rate():
    gpu = GpuState(GpuReading(index=0))
    take(gpu, 0.0, ecc_corrected=9_000_000_000)
    take(gpu, 10.0, ecc_corrected=9_000_000_000)
    assert errors_of(gpu, 10.0) == {}
    take(gpu, 3600.0, ecc_corrected=9_000_036_000)
    assert errors_of(gpu, 3600.0)["gpu_ecc.corrected"].value == 10


def test_a_counter_that_begins_again_or_could_not_be_read_has_not_risen():
    gpu = GpuState(GpuReading(index=0))
    take(gpu, 0.0, ecc_uncorrected=8)
    take(gpu, 10.0)
    take(gpu, 20.0, ecc_uncorrected=3)
    assert errors_of(gpu, 20.0) == {}
    take(gpu, 30.0, ecc_uncorrected=4)
    assert errors_of(gpu, 30.0)["gpu_errors.ecc_uncorrected"].value == 1


def names_of(gpu: GpuState, now: float, family: str) -> list[tuple[float, float | None]]:
    found = observe_gpu(gpu, now, now, NOWHERE)
    return [(each.age_s, each.value) for each in found if each.name == family]


def test_links_are_lost_only_if_they_were_up_before():
    gpu = GpuState(GpuReading(index=0))
    take(gpu, 10.0, nvlinks=18, nvlinks_up=16)  # two were never up
    assert names_of(gpu, 10.0, "gpu_nvlink_lost") == []
    take(gpu, 20.0, nvlinks=18, nvlinks_up=12)
    take(gpu, 25.0, nvlinks=18)
    take(gpu, 30.0, nvlinks=18, nvlinks_up=12)
    assert names_of(gpu, 31.0, "gpu_nvlink_lost") == [(11, 4)]
    take(gpu, 40.0, nvlinks=18, nvlinks_up=11)
    assert names_of(gpu, 41.0, "gpu_nvlink_lost") == [(1, 5)]
    take(gpu, 50.0, nvlinks=18, nvlinks_up=16)
    assert names_of(gpu, 50.0, "gpu_nvlink_lost") == []


def test_lost_links_name_a_process_of_the_gpu():
    """So a diagnosis knows whose job uses the GPU."""
    gpu = GpuState(GpuReading(index=0))
    for now, up in ((10.0, 18), (20.0, 0)):
        values = {"nvlinks": 18.0, "nvlinks_up": float(up)}
        gpu.take(GpuReading(index=0, values=values, processes=(4711,), age_s=0.0), now)
    found = observe_gpu(gpu, 20.0, 20.0, NOWHERE)
    assert [each.pid for each in found if each.name == "gpu_nvlink_lost"] == [4711]


def test_missing_gpus_have_the_age_of_their_loss():
    count = GpuCount("/nowhere", {})
    assert list(count.compare(8, 10.0)) == []
    assert [(e.age_s, e.value) for e in count.compare(7, 20.0)] == [(0, 1)]
    (found,) = count.compare(7, 35.0)
    assert (found.age_s, found.text) == (15, "the driver shows 7 of 8 GPUs")
    assert list(count.compare(8, 40.0)) == []
    assert count.expected == 8


def test_a_container_with_some_gpus_expects_those(tmp_path: Path):
    device = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    (device / "class").write_text("0x030200")
    (device / "vendor").write_text("0x10de")
    for visible, expected in (("all", 1), ("0,1", 0), ("void", 0)):
        count = GpuCount(str(tmp_path), {"NVIDIA_VISIBLE_DEVICES": visible})
        assert len(list(count.compare(0, 1.0))) == expected


@pytest.mark.parametrize(
    ("driver", "expected"),
    [("nvidia", 1), ("", 1), ("vfio-pci", 0), ("nvgrace_gpu_vfio_pci", 0), ("nouveau", 0)],
)
def test_gpus_of_other_drivers_are_not_missing(tmp_path: Path, driver: str, expected: int):
    device = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    (device / "class").write_text("0x030200")
    (device / "vendor").write_text("0x10de")
    if driver:
        (device / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
    assert len(list(GpuCount(str(tmp_path), {}).compare(0, 1.0))) == expected


def test_errors_are_new_if_they_follow_each_other():
    gpu = GpuState(GpuReading(index=0))
    take(gpu, 0.0, ecc_uncorrected=7)
    for at, count in ((10.0, 9), (20.0, 9), (30.0, 12)):
        take(gpu, at, ecc_uncorrected=count)
    found = errors_of(gpu, 31.0)["gpu_errors.ecc_uncorrected"]
    assert (found.value, found.age_s) == (5, 1)
    assert found.text == "5 new uncorrected errors of its memory"
    take(gpu, 1000.0, ecc_uncorrected=13)
    assert errors_of(gpu, 1000.0)["gpu_errors.ecc_uncorrected"].value == 1


STATES = {
    "gpu_pcie_width": ({"pcie_width": 16, "pcie_max_width": 16}, {"pcie_width": 8}),
    "gpu_recovery": ({"recovery_action": 0}, {"recovery_action": 1}),
    "gpu_remap.failed": ({"remap_failed": 0}, {"remap_failed": 1}),
    "gpu_remap.pending": ({"remap_failed": 0}, {"remap_pending": 1}),
    "gpu_fabric": ({"fabric_state": 3}, {"fabric_state": 1}),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_is_as_old_as_it_is_known_to_last(name: str):
    good, bad = STATES[name]
    gpu = GpuState(GpuReading(index=0))
    take(gpu, 1000.0, **good)
    assert names_of(gpu, 1000.0, name) == []
    take(gpu, 1010.0, **(good | bad))
    take(gpu, 1020.0)  # it could not be read
    take(gpu, 1030.0, **(good | bad))
    [(age_s, _)] = names_of(gpu, 1031.0, name)
    assert age_s == 21
    take(gpu, 1040.0, **good)
    assert names_of(gpu, 1040.0, name) == []


@pytest.mark.parametrize("name", STATES)
def test_a_state_that_an_agent_finds_at_its_start_may_be_as_old_as_the_node(name: str):
    good, bad = STATES[name]
    gpu = GpuState(GpuReading(index=0))
    take(gpu, 1000.0, **(good | bad))
    [(age_s, _)] = names_of(gpu, 1001.0, name)
    assert age_s == 1001


def test_the_fabric_of_a_node_is_as_old_as_that_of_its_first_gpu_without_one():
    gpus = [GpuState(GpuReading(index=index)) for index in range(2)]
    for gpu in gpus:
        take(gpu, 1000.0, fabric_state=3)
    assert list(observe_fabric(gpus, 1000.0)) == []
    take(gpus[0], 1010.0, fabric_state=1)
    take(gpus[1], 1020.0, fabric_state=2)
    (found,) = observe_fabric(gpus, 1030.0)
    assert (found.subject, found.name, found.age_s, found.value) == (
        "node",
        "fabric_not_ready",
        20.0,
        2,
    )
