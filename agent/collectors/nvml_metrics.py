"""The metrics of GPUs on the agent's own page. `gpu` is the PCI address, as in the kernel log."""

from __future__ import annotations

from collections.abc import Iterator

from agent.collectors.gpu_pattern import SLOWED, Pattern
from agent.collectors.nvml_child import CALL_BUCKETS_S
from agent.collectors.nvml_process import GpuReading, NodeReading
from watchtower.metric_spec import MetricSpec, Sample, counter, gauge, histogram

UTILIZATION = gauge(
    "watchtower_gpu_utilization_ratio",
    "gpu",
    "Share of the last second in which a kernel was resident on the GPU, 0 to 1. A kernel that "
    "waits for another GPU counts, too. `gpu` is the PCI address.",
)
MEMORY_USED = gauge("watchtower_gpu_memory_used_bytes", "gpu", "Used memory of the GPU.")
POWER = gauge("watchtower_gpu_power_watts", "gpu", "Power of the GPU.")
TENSOR = gauge(
    "watchtower_gpu_tensor_active_ratio",
    "gpu",
    "Use of the GPU's tensor cores, 0 to 1. On Hopper and later.",
)
DRAM = gauge(
    "watchtower_gpu_dram_active_ratio",
    "gpu",
    "Use of the bandwidth of the GPU's memory, 0 to 1. On Hopper and later.",
)
ENERGY = counter(
    "watchtower_gpu_energy_joules_total", "gpu", "Energy of the GPU since the driver was loaded."
)
CLOCK = gauge("watchtower_gpu_sm_clock_hertz", "gpu", "Clock of the GPU's processors.")
TEMPERATURE = gauge("watchtower_gpu_temperature_celsius", "gpu", "Temperature of the GPU.")
THROTTLED = gauge(
    "watchtower_gpu_throttled",
    "gpu",
    "1 while the clocks of the GPU are reduced because of heat, power or its hardware.",
)
PATTERN = gauge(
    "watchtower_gpu_pattern",
    "gpu",
    "What the GPU does: 0 idle, 1 working, 2 spinning (a kernel is resident and hardly uses memory "
    "or power: it waits), 3 throttled, 5 lost, -1 not known.",
)
ECC = counter(
    "watchtower_gpu_ecc_errors_total",
    "gpu kind",
    "Errors of the GPU's memory since the driver was loaded: `corrected`, `uncorrected`.",
)
REMAPPED = gauge(
    "watchtower_gpu_remapped_rows",
    "gpu state",
    "Rows of the GPU's memory that were replaced: `corrected`, `uncorrected`. 1 in `pending`: the "
    "GPU needs a reset. 1 in `failed`: the GPU must be replaced.",
)
NVLINK = counter(
    "watchtower_gpu_nvlink_errors_total",
    "gpu kind",
    "Errors of the GPU's NVLinks: `replay`, `recovery`, `crc_flit`, `crc_data`; of Blackwell and "
    "later: `malformed`, `integrity`, `link_recovery`.",
)
PCIE_REPLAYS = counter(
    "watchtower_gpu_pcie_replays_total", "gpu", "Packets that PCIe had to send again."
)
RECOVERY = gauge(
    "watchtower_gpu_recovery_action",
    "gpu",
    "What the driver recommends: 0 nothing, 1 reset the GPU, 2 reboot the node, 3 drain P2P, 4 "
    "drain and reset, 5 recover the IMEX domain, 6 reset the bus, 7 reboot the system.",
)
PROCESSES = gauge("watchtower_gpu_processes", "gpu", "Processes that compute on the GPU.")
INFO = gauge("watchtower_gpu_info", "gpu index uuid model driver", "Always 1. Names of the GPU.")
VISIBLE = gauge("watchtower_gpus_visible", "", "GPUs that the driver shows on this node.")
STUCK = gauge(
    "watchtower_nvml_stuck_seconds",
    "",
    "Seconds since a call of NVML did not return; 0 while all calls return.",
)

NUMBERS = {
    Pattern.IDLE: 0,
    Pattern.WORKING: 1,
    Pattern.SPINNING: 2,
    Pattern.THROTTLED: 3,
    Pattern.LOST: 5,
    Pattern.UNKNOWN: -1,
}
"""Values of `watchtower_gpu_pattern`."""

CALLS = histogram(
    "watchtower_nvml_call_seconds",
    "call",
    "Duration of the calls of NVML that returned, of all GPUs, by their kind: `load`, `units`, "
    "`errors`, `rare`.",
)

_PLAIN: tuple[tuple[str, MetricSpec], ...] = (
    ("utilization", UTILIZATION),
    ("memory_used_bytes", MEMORY_USED),
    ("power_w", POWER),
    ("tensor_active", TENSOR),
    ("dram_active", DRAM),
    ("energy_j", ENERGY),
    ("sm_clock_hz", CLOCK),
    ("temperature_c", TEMPERATURE),
    ("pcie_replays", PCIE_REPLAYS),
    ("recovery_action", RECOVERY),
)
_KINDS: tuple[tuple[str, MetricSpec, str], ...] = (
    ("ecc_corrected", ECC, "corrected"),
    ("ecc_uncorrected", ECC, "uncorrected"),
    ("nvlink_replay", NVLINK, "replay"),
    ("nvlink_recovery", NVLINK, "recovery"),
    ("nvlink_crc_flit", NVLINK, "crc_flit"),
    ("nvlink_crc_data", NVLINK, "crc_data"),
    ("nvlink_malformed", NVLINK, "malformed"),
    ("nvlink_integrity", NVLINK, "integrity"),
    ("nvlink_link_recovery", NVLINK, "link_recovery"),
    ("remapped_corrected", REMAPPED, "corrected"),
    ("remapped_uncorrected", REMAPPED, "uncorrected"),
    ("remap_pending", REMAPPED, "pending"),
    ("remap_failed", REMAPPED, "failed"),
)

METRICS: tuple[MetricSpec, ...] = tuple(
    each for each in tuple(globals().values()) if isinstance(each, MetricSpec)
)


def sample_names(gpu: str, pattern: Pattern, reading: GpuReading, driver: str) -> Iterator[Sample]:
    """Return the names of a GPU and its pattern. They are shown also if it does not answer."""
    names = (reading.names.get("uuid", ""), reading.names.get("model", ""), driver)
    yield Sample(INFO, (gpu, str(reading.index), *names), 1)
    yield Sample(PATTERN, (gpu,), NUMBERS[pattern])


def sample_values(gpu: str, reading: GpuReading) -> Iterator[Sample]:
    """Return the values of a GPU that were read."""
    values = reading.values
    yield Sample(PROCESSES, (gpu,), len(reading.processes))
    for name, spec in _PLAIN:
        if name in values:
            yield Sample(spec, (gpu,), values[name])
    for name, spec, kind in _KINDS:
        if name in values:
            yield Sample(spec, (gpu, kind), values[name])
    if "clock_reasons" in values:
        is_slowed = bool(int(values["clock_reasons"]) & SLOWED)
        yield Sample(THROTTLED, (gpu,), float(is_slowed))


def sample_calls(node: NodeReading) -> Iterator[Sample]:
    """Return the histogram of the durations of calls."""
    for kind, (*counts, total_s) in node.durations.items():
        if len(counts) != len(CALL_BUCKETS_S) + 1:
            continue
        ends = (*map(str, CALL_BUCKETS_S), "+Inf")
        so_far = 0.0
        for end, count in zip(ends, counts, strict=True):
            so_far += count
            yield Sample(CALLS, (kind,), so_far, part="_bucket", le=end)
        yield Sample(CALLS, (kind,), so_far, part="_count")
        yield Sample(CALLS, (kind,), total_s, part="_sum")
