"""Numbers of NVML: of fields, of metrics of the units, and of errors."""

from __future__ import annotations

FIELDS = {
    "ecc_corrected": 3,
    "ecc_uncorrected": 4,
    "ecc_lifetime_corrected": 5,
    "ecc_lifetime_uncorrected": 6,
    "nvlink_crc_flit": 38,
    "nvlink_crc_data": 45,
    "nvlink_replay": 52,
    "nvlink_recovery": 59,
    "nvlinks": 91,
    "pcie_replays": 94,
    "nvlink_malformed": 206,
    "nvlink_integrity": 211,
    "nvlink_link_recovery": 215,
    "recovery_action": 230,
}
"""Fields of one batch of `nvmlDeviceGetFieldValues`: totals since the driver was loaded, of memory
also since the GPU was made; the number of its NVLinks; and what the driver recommends."""

RARE_FIELDS = {
    "retired_single_bit": 29,
    "retired_double_bit": 30,
    "retirement_pending": 31,
}
"""Fields of the batch that is read seldom: pages of memory that GPUs before Ampere retire."""

LINK_STATE = 165
"""Field with the state of one NVLink, on Hopper and later; the scope is the number of the link."""

LINK_OFF = 0
"""State of a link that is down. The others are states of a link that is up: active, asleep, active
without traffic."""

MAX_LINKS = 36
"""`NVML_NVLINK_MAX_LINKS`."""

_MIB = 1 << 20

UNITS = {
    "sm_active": (2, 0.01),
    "tensor_active": (5, 0.01),
    "dram_active": (10, 0.01),
    "nvlink_received_per_s": (60, _MIB),
    "nvlink_sent_per_s": (61, _MIB),
}
"""Numbers of GPM metrics, and what one of their units (percent, or MiB a second) is in ours."""

OF_TYPE = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Member of the union with the value of a field, by its type."""

UTILIZATION_SAMPLES = 1
"""`NVML_GPU_UTILIZATION_SAMPLES`: the driver's own samples, some six a second."""

STATES = {
    9: "no_driver",
    12: "no_library",
    15: "lost",
    16: "reset_required",
    18: "driver_mismatch",
    28: "lost",
}
"""Error codes of NVML that are states of the node or of a GPU."""

NOT_FOUND = 6
"""Code of a call that finds nothing: the driver has no newer sample."""

UNSUPPORTED = (2, 3, 13, 25)
"""Codes of a call that this GPU or driver does not have: invalid argument, not supported, function
not found, argument version mismatch. The call is not made again."""
