"""The metrics of GPUs on the agent's own page. `gpu` is the PCI address, as in the kernel log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agent.collectors.gpu.device import CALL_BUCKETS_S
from agent.collectors.gpu.pattern import SLOWED_BY, Pattern
from agent.collectors.gpu.reading import GpuReading, NodeReading
from agent.collectors.gpu.report import FABRIC_DONE
from watchtower.service.metric_spec import MetricSpec, Sample, counter, gauge, histogram

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
SM = gauge(
    "watchtower_gpu_sm_active_ratio",
    "gpu",
    "Share of the GPU's processors that were busy, 0 to 1. On Hopper and later.",
)
NVLINK_BYTES = gauge(
    "watchtower_gpu_nvlink_bytes_per_second",
    "gpu direction",
    "Bytes a second of all NVLinks of the GPU: `received`, `sent`. On Hopper and later.",
)
THROTTLED = gauge(
    "watchtower_gpu_throttled",
    "gpu reason",
    "1 while the clocks of the GPU are reduced for this reason: `heat`, `power_brake` (the power "
    "supply asks for it), `hardware` (any reason that the hardware of the GPU has found).",
)
PATTERN = gauge(
    "watchtower_gpu_pattern",
    "gpu",
    "What the GPU does: 0 idle, 1 working, 2 spinning (a kernel is resident and hardly uses memory "
    "or power: it waits), 3 throttled, 4 frozen (its counters stand still), 5 lost, -1 not known.",
)
ECC = counter(
    "watchtower_gpu_ecc_errors_total",
    "gpu kind",
    "Errors of the GPU's memory since the driver was loaded: `corrected`, `uncorrected`.",
)
ECC_LIFETIME = counter(
    "watchtower_gpu_ecc_lifetime_errors_total",
    "gpu kind",
    "Errors of the GPU's memory since it was made: `corrected`, `uncorrected`.",
)
RETIRED = gauge(
    "watchtower_gpu_retired_pages",
    "gpu state",
    "Pages of the GPU's memory that are no longer used, by their errors: `single_bit`, "
    "`double_bit`. 1 in `pending`: the GPU needs a reset. GPUs since Ampere replace rows instead.",
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
NVLINKS = gauge("watchtower_gpu_nvlinks", "gpu state", "NVLinks of the GPU: `up`, `down`.")
FABRIC = gauge(
    "watchtower_gpu_fabric_state",
    "gpu",
    "How far the GPU has joined its NVLink fabric: 0 it has none, 1 not started, 2 in progress, 3 "
    "completed, 4 failed.",
)
FABRIC_HEALTH = gauge(
    "watchtower_gpu_fabric_health",
    "gpu",
    "Health of the GPU's NVLink fabric: 0 not known, 1 healthy, 2 unhealthy, 3 limited capacity.",
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
EXPECTED = gauge(
    "watchtower_gpus_expected",
    "",
    "GPUs that this node should have: those on the PCI bus, or the most that the driver has shown "
    "since the agent started, whichever is more.",
)
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
    Pattern.FROZEN: 4,
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

FABRIC_FAILED = 4
"""Value of `watchtower_gpu_fabric_state`; the others are those of NVML. NVML has no state for a
fabric whose set-up failed: that is completed, with an error."""

_PLAIN: tuple[tuple[str, MetricSpec], ...] = (
    ("utilization", UTILIZATION),
    ("memory_used_bytes", MEMORY_USED),
    ("power_w", POWER),
    ("sm_active", SM),
    ("tensor_active", TENSOR),
    ("dram_active", DRAM),
    ("energy_j", ENERGY),
    ("sm_clock_hz", CLOCK),
    ("temperature_c", TEMPERATURE),
    ("pcie_replays", PCIE_REPLAYS),
    ("recovery_action", RECOVERY),
    ("fabric_health", FABRIC_HEALTH),
)
_KINDS: tuple[tuple[str, MetricSpec, str], ...] = (
    ("ecc_corrected", ECC, "corrected"),
    ("ecc_uncorrected", ECC, "uncorrected"),
    ("ecc_lifetime_corrected", ECC_LIFETIME, "corrected"),
    ("ecc_lifetime_uncorrected", ECC_LIFETIME, "uncorrected"),
    ("retired_single_bit", RETIRED, "single_bit"),
    ("retired_double_bit", RETIRED, "double_bit"),
    ("retirement_pending", RETIRED, "pending"),
    ("nvlink_received_per_s", NVLINK_BYTES, "received"),
    ("nvlink_sent_per_s", NVLINK_BYTES, "sent"),
    ("nvlinks_up", NVLINKS, "up"),
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
    yield from _sample_states(gpu, values)


def _sample_states(gpu: str, values: Mapping[str, float]) -> Iterator[Sample]:
    """Return what several values show together."""
    if "clock_reasons" in values:
        for reason, bits in SLOWED_BY.items():
            is_slowed = bool(int(values["clock_reasons"]) & bits)
            yield Sample(THROTTLED, (gpu, reason), float(is_slowed))
    if "nvlinks_up" in values:
        down = values.get("nvlinks", 0) - values["nvlinks_up"]
        yield Sample(NVLINKS, (gpu, "down"), max(0.0, down))
    if "fabric_state" in values:
        has_failed = values["fabric_state"] == FABRIC_DONE and values.get("fabric_status", 0) != 0
        yield Sample(FABRIC, (gpu,), FABRIC_FAILED if has_failed else values["fabric_state"])


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
