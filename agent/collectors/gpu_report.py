"""The report of one GPU: its pattern, its processes, its state, and errors that increased."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from agent.collectors.gpu_state import ERRORS, LOST, GpuState
from agent.procfs import Proc
from watchtower.wire.observations import Observation
from watchtower.writing.printable import printable

SOURCE = "nvml"

REPORTED_S = 900.0
"""Seconds for which an increase of an error counter is reported."""

RISING_S = 30.0
"""Seconds after an increase of the errors of its memory in which they count as rising. They are
read every 10 s."""

MAX_COMMAND = 16
"""Characters of the name of a process: the kernel's own limit."""

MAX_REPORTED_PROCESSES = 4
"""Processes of one GPU that are reported: a rank and its helpers."""

RECOVERY_ACTIONS = (
    "none",
    "reset_gpu",
    "reboot_node",
    "drain_p2p",
    "drain_and_reset",
    "recover_imex",
    "reset_bus",
    "reboot_system",
)
"""The driver's recommendation, by its number in NVML."""

FROZEN = "NVML answers, and none of its counters changes, not even its energy"

FABRIC_STATES = {1: "is not set up yet: is the fabric manager running?", 2: "is being set up"}
"""States of the set-up in which programs cannot use NVLink."""

FABRIC_DONE = 3
"""State of a set-up that has ended, with or without an error."""

FABRIC_HEALTH = {2: "is unhealthy", 3: "has less capacity than it should"}
"""Bad values of its health, in words. Since NVML's version 3 of the structure."""


def observe(
    subject: str,
    name: str,
    age_s: float,
    *,
    value: float | None = None,
    unit: str = "",
    text: str = "",
    pid: int | None = None,
) -> Observation:
    """Return an observation of NVML."""
    return Observation(
        source=SOURCE,
        subject=subject,
        name=name,
        age_s=max(0.0, age_s),
        value=value,
        unit=unit,
        text=text,
        pid=pid,
    )


def observe_gpu(gpu: GpuState, read_at: float, now: float, proc: Proc) -> Iterator[Observation]:
    """Return what is known of a GPU; nothing before its first read.

    `read_at`: when the reader last printed the state of the GPU.
    """
    if not gpu.was_read:
        return
    reading, subject = gpu.reading, gpu.subject
    age_s = now - (gpu.read_at if gpu.lost_at is None else read_at)
    pids = reading.processes[:MAX_REPORTED_PROCESSES]
    if gpu.is_fresh(now) or gpu.lost_at is not None:
        yield observe(
            subject,
            f"gpu_pattern.{gpu.find_pattern(now).value}",
            age_s,
            value=reading.index,
            text=_describe_load(reading.values),
            pid=pids[0] if pids else None,
        )
    for pid in pids[1:]:
        yield observe(subject, f"gpu_process.{pid}", age_s, pid=pid)
    if gpu.lost_at is not None:
        words, lost_s = LOST[reading.state], now - gpu.lost_at
        yield observe(subject, f"gpu_{reading.state}", lost_s, text=words)
    if gpu.frozen_at is not None:
        frozen_s, first = now - gpu.frozen_at, next(iter(pids), None)
        yield observe(subject, "gpu_frozen", frozen_s, text=FROZEN, pid=first)
    yield from _observe_orphans(gpu, age_s, now, proc)
    yield from _observe_errors(gpu, now)
    yield from _observe_device(gpu, age_s)
    yield from _observe_links(gpu, age_s, now)


def _observe_orphans(gpu: GpuState, age_s: float, now: float, proc: Proc) -> Iterator[Observation]:
    if orphans := gpu.find_orphans(proc, now):
        first = printable(proc.name(orphans[0]), MAX_COMMAND)
        more = f" and {len(orphans) - 1} more" if len(orphans) > 1 else ""
        text = f"pid {orphans[0]} ({first}){more} uses it, and its job has ended"
        yield observe(gpu.subject, "gpu_orphan", age_s, value=len(orphans), text=text)


def _observe_errors(gpu: GpuState, now: float) -> Iterator[Observation]:
    pid = next(iter(gpu.reading.processes), None)
    for name, (at, total, per_s) in gpu.increases().items():
        age_s = now - at
        if age_s <= REPORTED_S:
            text = f"{total:.0f} {ERRORS[name]} since the agent started"
            yield observe(gpu.subject, f"gpu_errors.{name}", age_s, value=total, text=text, pid=pid)
        if name.startswith("ecc_") and age_s <= RISING_S:
            kind, text = name.removeprefix("ecc_"), f"{per_s:.1f} {ERRORS[name]} a second"
            yield observe(
                gpu.subject, f"gpu_ecc.{kind}", age_s, value=per_s, unit="1/s", text=text, pid=pid
            )


def _observe_device(gpu: GpuState, age_s: float) -> Iterator[Observation]:
    subject, values = gpu.subject, gpu.reading.values
    width, most = values.get("pcie_width", 0), values.get("pcie_max_width", 0)
    if 0 < width < most:
        text = f"its PCIe link has {width:.0f} of {most:.0f} lanes"
        yield observe(subject, "gpu_pcie_width", age_s, value=width, text=text)
    action = int(values.get("recovery_action", 0))
    if 0 < action < len(RECOVERY_ACTIONS):
        text = f"the driver recommends: {RECOVERY_ACTIONS[action]}"
        yield observe(subject, "gpu_recovery", age_s, value=action, text=text)
    if values.get("remap_failed"):
        text = "it could not replace a row of its memory: it must be exchanged"
        yield observe(subject, "gpu_remap", age_s, text=text)
    elif values.get("remap_pending") or values.get("retirement_pending"):
        text = "it replaces memory with errors at its next reset"
        yield observe(subject, "gpu_remap", age_s, text=text)


def _observe_links(gpu: GpuState, age_s: float, now: float) -> Iterator[Observation]:
    values, pid = gpu.reading.values, next(iter(gpu.reading.processes), None)
    if gpu.links_lost is not None:
        at, count = gpu.links_lost
        text = f"{count} of its {values.get('nvlinks', 0):.0f} NVLinks were lost"
        yield observe(gpu.subject, "gpu_nvlink_lost", now - at, value=count, text=text, pid=pid)
    if trouble := _find_fabric_trouble(values):
        text = f"its NVLink fabric {trouble}"
        yield observe(gpu.subject, "gpu_fabric", age_s, value=values.get("fabric_state"), text=text)


def _find_fabric_trouble(values: Mapping[str, float]) -> str:
    """Return why the GPU cannot use its fabric; empty if it can, or if it has none."""
    state, status = values.get("fabric_state", 0), values.get("fabric_status", 0)
    if state in FABRIC_STATES:
        return FABRIC_STATES[int(state)]
    if state == FABRIC_DONE and status:
        return f"was not set up (error {status:.0f})"
    return FABRIC_HEALTH.get(int(values.get("fabric_health", 0)), "")


def _describe_load(values: Mapping[str, float]) -> str:
    """Return "100 % busy, memory 0 %, 95 W of 700 W"; empty without values."""
    if values.get("mig"):
        return "MIG is on, so its load is not known"
    if "utilization" not in values:
        return ""
    text = f"{values['utilization']:.0%} busy, memory {values.get('memory_utilization', 0):.0%}"
    if "power_w" in values:
        limit = f" of {values['power_limit_w']:.0f} W" if "power_limit_w" in values else ""
        text += f", {values['power_w']:.0f} W{limit}"
    return text
