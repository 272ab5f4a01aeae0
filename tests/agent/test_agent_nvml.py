"""GPUs as the reader prints them, by value."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.collectors.nvml import Nvml, _Gpu
from agent.collectors.nvml_process import NOT_INSTALLED, GpuReading


def test_a_gpu_whose_first_read_has_not_ended_is_not_reported():
    collector = Nvml("/nowhere")
    half_read = GpuReading(index=0, values={"recovery_action": 2.0}, processes=[1, 2])
    gpu = _Gpu(half_read, float("-inf"))
    assert list(collector._observe_gpu(gpu, 10.0)) == []
    gpu.take(GpuReading(index=0, values=half_read.values, processes=[1, 2], age_s=0.5), 11.0)
    names = [each.name for each in collector._observe_gpu(gpu, 11.0)]
    assert names == ["gpu_pattern.unknown", "gpu_process.2", "gpu_recovery"]


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
    collector = Nvml(str(tmp_path))
    for processes, wanted in (([40, 50, 49, 77], 1), ([50, 49], 0)):
        gpu = _Gpu(GpuReading(index=0), 10.0)
        gpu.take(GpuReading(index=0, processes=processes, age_s=0.5), 11.0)
        found = [e for e in collector._observe_gpu(gpu, 11.0) if e.name == "gpu_orphan"]
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
