"""The collector of GPUs on a real driver. No test changes a setting of a GPU."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from agent.collectors.gpu.metrics import sample_values
from agent.gaps import HOST_PID_NAMESPACE, read_pid_namespace
from agent.procfs import Proc
from tests.system.gpu.real_gpus import (
    SETTLES_S,
    LoadError,
    NoGpuError,
    RealGpus,
    find_states,
)

pytestmark = pytest.mark.timeout(300)

SHARES = ("utilization", "memory_utilization", "sm_active", "tensor_active", "dram_active")


@pytest.fixture(scope="module")
def gpus() -> Iterator[RealGpus]:
    try:
        found = RealGpus()
    except NoGpuError as error:
        pytest.skip(f"{error}")
    yield found
    found.stop()


def test_each_gpu_has_its_names_and_plausible_values(gpus: RealGpus) -> None:
    gpus.watch(12.0)
    for state in gpus.all_states:
        values = state.reading.values
        assert state.subject.startswith("pci:")
        assert state.reading.names["uuid"].startswith("GPU-")
        assert state.is_fresh(time.monotonic())
        assert all(0 <= values[name] <= 1.01 for name in SHARES if name in values)
        assert 1 < values["power_w"] < 3000
        assert 0 < values["temperature_c"] < 120
        assert values["memory_used_bytes"] <= values["memory_bytes"]
        assert len(list(sample_values("gpu", state.reading))) <= 34
    assert gpus.collector.gap() == ""


def test_counters_of_a_gpu_that_works_are_not_frozen(gpus: RealGpus) -> None:
    """The rule needs counters that change all the time, also in an idle GPU."""
    seen = gpus.watch(45.0)
    for name in ("energy_j", "sampled_at"):
        known = [values[name] for values in seen if name in values]
        if known:
            assert known[-1] > known[0], f"{name} does not rise"
    assert gpus.state.frozen_at is None


def test_calls_return_in_time(gpus: RealGpus) -> None:
    for kind, (*counts, total_s) in gpus.collector._node.durations.items():
        assert total_s / max(1.0, sum(counts)) < 0.1, f"calls of {kind} are slow"


@pytest.mark.parametrize("kind", ["idle", "spinning", "working"])
def test_a_load_has_its_pattern_and_its_process(gpus: RealGpus, kind: str) -> None:
    state = gpus.collect()
    if state.reading.processes:
        pytest.skip(f"GPU {gpus.index} is in use by pid {state.reading.processes[0]}")
    states = find_states(state.reading.names["uuid"])
    if kind not in states:
        pytest.skip("a load needs torch with CUDA: .venv/bin/pip install torch")
    try:
        with states[kind]() as pid:
            gpus.watch(SETTLES_S + 12.0)  # the processes are read every 10 s
            assert gpus.pattern() == kind
            if pid is not None and read_pid_namespace(Proc("/")) == HOST_PID_NAMESPACE:
                assert pid in gpus.state.reading.processes
    except LoadError as error:
        pytest.skip(f"torch cannot use the GPU: {error}")
    finally:
        gpus.watch(12.0)


def test_the_reader_stops_at_once() -> None:
    try:
        gpus = RealGpus()
    except NoGpuError as error:
        pytest.skip(f"{error}")
    began = time.monotonic()
    gpus.stop()
    assert time.monotonic() - began < 1
