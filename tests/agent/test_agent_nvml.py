"""GPUs as the reader prints them, by value."""

from __future__ import annotations

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
