"""Panels about the GPUs of one node, for its dashboard."""

from __future__ import annotations

from dashboards.panels import (
    BLUE,
    GREEN,
    ORANGE,
    RED,
    YELLOW,
    Column,
    Query,
    Text,
    series,
    stat,
    table,
    timeline,
)

THIS = '{node="$node"}'
NOT_SCRAPED = "The agent of this node is not scraped"
NOT_READ = "No GPU of this node is read"

XIDS = table(
    Text(
        "GPU errors (Xid)",
        "Errors that the GPU driver reported in the time range, by PCI address.",
        "s",
        "The driver reported no error in this time range",
    ),
    Query(f"""
min by (gpu, xid, fatal, action) (
  time() - max_over_time(watchtower_xid_last_timestamp_seconds{THIS}[$__range])
)
"""),
    Column("gpu", "GPU"),
    Column("xid", "Xid"),
    Column("fatal", "GPU is to blame"),
    Column("action", "action"),
    Column("Value", "age", unit="s"),
)

COUNT = stat(
    Text(
        "GPUs missing",
        "GPUs of this node that the driver does not show.",
        "none",
        NOT_READ,
    ),
    Query(f"max(watchtower_gpus_expected{THIS}) - max(watchtower_gpus_visible{THIS})"),
    thresholds={1: RED},
)

GPUS = table(
    Text(
        "GPUs",
        "The GPUs that the driver shows.",
        "none",
        NOT_READ,
    ),
    Query(f"""
max by (index, gpu, model, driver) (watchtower_gpu_info{THIS})
"""),
    Column("index", "GPU"),
    Column("gpu", "PCI address"),
    Column("model", "model"),
    Column("driver", "driver"),
)

PATTERN = timeline(
    Text(
        "What the GPUs do",
        "What each GPU does over time; spinning is a wait for another GPU.",
        "none",
        NOT_READ,
    ),
    Query(f"max by (gpu) (watchtower_gpu_pattern{THIS})", "{{gpu}}"),
    values={
        -1: ("not known", "gray"),
        0: ("idle", YELLOW),
        1: ("working", GREEN),
        2: ("spinning", BLUE),
        3: ("throttled", ORANGE),
        4: ("frozen", RED),
        5: ("lost", RED),
    },
)

UTILIZATION = series(
    Text(
        "GPU utilization",
        "Share of the time in which a kernel is resident; a kernel that waits counts, too.",
        "percentunit",
        NOT_READ,
    ),
    Query(f"max by (gpu) (watchtower_gpu_utilization_ratio{THIS})", "{{gpu}}"),
)

POWER = series(
    Text("GPU power", "Power of each GPU.", "watt", NOT_READ),
    Query(f"max by (gpu) (watchtower_gpu_power_watts{THIS})", "{{gpu}}"),
)

UNITS = series(
    Text(
        "Units of the GPUs",
        "Use of the processors, the tensor cores and the memory's bandwidth of each GPU.",
        "percentunit",
        "GPUs before Hopper do not count it",
    ),
    Query(f"max by (gpu) (watchtower_gpu_sm_active_ratio{THIS})", "{{gpu}} processors"),
    Query(f"max by (gpu) (watchtower_gpu_tensor_active_ratio{THIS})", "{{gpu}} tensor"),
    Query(f"max by (gpu) (watchtower_gpu_dram_active_ratio{THIS})", "{{gpu}} memory"),
)

CLOCKS = series(
    Text("GPU clocks", "Clock of the processors of each GPU.", "hertz", NOT_READ),
    Query(f"max by (gpu) (watchtower_gpu_sm_clock_hertz{THIS})", "{{gpu}}"),
    Query(
        f"max by (gpu) (watchtower_gpu_sm_clock_hertz{THIS})"
        f" and on (gpu) max by (gpu) (watchtower_gpu_throttled{THIS}) == 1",
        "{{gpu}} reduced",
    ),
)

SLOWED = timeline(
    Text(
        "Reduced clocks",
        "Why the clocks of a GPU are reduced, over time; the hardware has several reasons.",
        "none",
        NOT_READ,
    ),
    Query(f"max by (gpu, reason) (watchtower_gpu_throttled{THIS})", "{{gpu}} {{reason}}"),
    values={0: ("no", GREEN), 1: ("yes", ORANGE)},
)

NVLINK = series(
    Text(
        "NVLink",
        "Bytes a second of all NVLinks of each GPU.",
        "Bps",
        "GPUs before Hopper do not count it",
    ),
    Query(
        f"max by (gpu, direction) (watchtower_gpu_nvlink_bytes_per_second{THIS})",
        "{{gpu}} {{direction}}",
    ),
)

HEAT = series(
    Text("GPU temperature", "Temperature of each GPU.", "celsius", NOT_READ),
    Query(f"max by (gpu) (watchtower_gpu_temperature_celsius{THIS})", "{{gpu}}"),
    thresholds={80: YELLOW, 90: RED},
)

ERRORS = series(
    Text(
        "GPU errors",
        "Errors of memory, NVLink and PCIe of each GPU in the time range up to each moment.",
        "none",
        "No GPU had an error",
    ),
    Query(
        f"max by (gpu, kind) (increase(watchtower_gpu_ecc_errors_total{THIS}[$__range])) > 0",
        "{{gpu}} memory {{kind}}",
    ),
    Query(
        f"max by (gpu, kind) (increase(watchtower_gpu_nvlink_errors_total{THIS}[$__range])) > 0",
        "{{gpu}} NVLink {{kind}}",
    ),
    Query(
        f"max by (gpu) (increase(watchtower_gpu_pcie_replays_total{THIS}[$__range])) > 0",
        "{{gpu}} PCIe replays",
    ),
)

HEALTH = series(
    Text(
        "GPU repairs",
        "Memory that was replaced or retired, lost NVLinks, a fabric that is not complete (state "
        "under 3, or 4), and the driver's recovery action.",
        "none",
        "No GPU needs a repair",
    ),
    Query(
        f"max by (gpu, state) (watchtower_gpu_remapped_rows{THIS}) > 0", "{{gpu}} rows {{state}}"
    ),
    Query(
        f"max by (gpu, state) (watchtower_gpu_retired_pages{THIS}) > 0", "{{gpu}} pages {{state}}"
    ),
    Query(
        'max by (gpu) (watchtower_gpu_nvlinks{node="$node",state="down"}) > 0',
        "{{gpu}} NVLinks down",
    ),
    Query(
        f"max by (gpu) (watchtower_gpu_fabric_state{THIS} != 3) > 0", "{{gpu}} state of the fabric"
    ),
    Query(f"max by (gpu) (watchtower_gpu_recovery_action{THIS}) > 0", "{{gpu}} recovery action"),
    stepped=True,
)

CALLS = series(
    Text(
        "Driver calls",
        "99th percentile of the duration of the calls of the GPU driver.",
        "s",
        NOT_READ,
    ),
    Query(
        "histogram_quantile(0.99, sum by (le)"
        f" (rate(watchtower_nvml_call_seconds_bucket{THIS}[$__rate_interval])))",
        "99 %",
    ),
)

STUCK = series(
    Text(
        "Driver call that does not return",
        "Seconds since a call of the GPU driver did not return.",
        "s",
        NOT_READ,
    ),
    Query(f"max(watchtower_nvml_stuck_seconds{THIS})", "stuck"),
    thresholds={5: RED},
)
