"""GPUs as the reader prints them, by value."""

from __future__ import annotations

from agent.collectors.nvml import Nvml, _Gpu
from agent.collectors.nvml_process import GpuReading


def test_a_gpu_whose_first_read_has_not_ended_is_not_reported():
    collector = Nvml("/nowhere")
    half_read = GpuReading(index=0, values={"recovery_action": 2.0}, processes=[1, 2])
    gpu = _Gpu(half_read, float("-inf"))
    assert list(collector._observe_gpu(gpu, 10.0)) == []
    gpu.take(GpuReading(index=0, values=half_read.values, processes=[1, 2], age_s=0.5), 11.0)
    names = [each.name for each in collector._observe_gpu(gpu, 11.0)]
    assert names == ["gpu_pattern.unknown", "gpu_process.2", "gpu_recovery"]
