"""The observations that blame a GPU, a process, a link or a node: one row each.

`blame.py` joins them with ranks. Families that blame no rank are in `BLAME_NOBODY`, with the
reason.
"""

from __future__ import annotations

from watchtower.diagnosis.accusation import Doubt, Tier
from watchtower.diagnosis.blame import QUOTE, Row, Since, Strength, Subject, index_rows
from watchtower.evidence.gpus import (
    GPU_ECC,
    LEAST_ECC_PER_S,
    LOST,
    NEEDS_RESET,
    NVML_ACTIONS,
    STUCK_FAMILY,
    XID,
    code_of,
    explain_error,
    is_fault,
)
from watchtower.wire.observations import Observation
from watchtower.wire.verdict import Cause, Domain

_GPU, _FABRIC, _BEHIND = Cause.GPU_FAULT, Cause.FABRIC_FAULT, Cause.BEHIND_COLLECTIVE

LEAST_STUCK_S = 5.0
"""A call that has not returned for less than this may be slow. Some take 3 s on a cold driver."""

LINK_ERRORS_ALONE = Doubt("link_errors_alone", 0.7, "the link has errors, but was not lost")

# What helps a GPU. {source} says who asks for it.

ACTIONS = {
    "restart_app": "restart the job from its last checkpoint; if it happens again on GPU {device} "
    "of {node}, replace that GPU",
    "reset_gpu": "drain {node}, then reset GPU {device}: `nvidia-smi --gpu-reset`; {source}",
    "reboot_node": "drain and reboot {node}: only a reboot brings GPU {device} back; {source}",
    "check_mechanicals": "drain {node} and check the power cables of GPU {device}; {source}",
    "check_link": "drain {node} and check the NVLinks of GPU {device}: `nvidia-smi nvlink "
    "--status`, and the fabric manager; {source}",
    "update_software": "update the driver and the firmware of {node}; {source}",
    "contact_support": "drain {node} and report GPU {device} to its vendor; {source}",
}
"""By the actions of `watchtower/service/xids.toml`, and of the driver."""

REBOOT_STUCK_DRIVER = (
    "drain and reboot {node}: no process can use a driver that does not answer; read its kernel "
    "log for Xid lines first"
)
CHECK_PCIE = (
    "drain {node} and check the slot, the riser and the cables of GPU {device}: `lspci -vv -s "
    "{device}` shows its lanes (LnkSta) and errors"
)
REPLACE_GPU = (
    "drain {node} and have GPU {device} replaced: it has no spare memory left for what is damaged; "
    "`nvidia-smi -q -d ROW_REMAPPER` shows it"
)
CHECK_FABRIC = (
    "on {node}: `systemctl status nvidia-fabricmanager`, and `nvidia-smi -q` shows the fabric "
    "state of every GPU"
)
CHECK_NVLINK = (
    "check NVLink and NVSwitch of {node} ({device}): `nvidia-smi nvlink --status`, and the fabric "
    "manager"
)
CHECK_LINK_STATE = (
    "check the link {device} of {node}: its cable and its switch port; `ip -s link` and `ibstat` "
    "show its state and errors"
)

CHECK_FAR_END = (
    "check the ports and switches between {node} and the other nodes of the job first: {device} "
    "gets no answer, so the fault is rather at the other end than on {node}"
)


def _say_xid(seen: Observation) -> str:
    """Return "Xid 79 at its last step (the GPU has ...)"."""
    meaning, code = explain_error(seen), code_of(seen)
    name = "lost" if code is None else f"Xid {code}"
    if seen.family == NEEDS_RESET:
        return "its driver reports {when} that it needs a reset"
    return f"{name} {{when}} ({meaning.means if meaning else 'unknown'})"


def _advise_xid(seen: Observation) -> str:
    meaning, code = explain_error(seen), code_of(seen)
    source = f"NVIDIA's catalogue asks for this after Xid {79 if code is None else code}"
    if seen.family == NEEDS_RESET:
        source = "the driver reports that a reset is required"
    action = ACTIONS[meaning.action if meaning else "contact_support"]
    return action.replace("{source}", source)


_ASKS = {
    "reset_gpu": "the driver asks for a reset",
    "reboot_node": "the driver asks for a reboot of the node",
}


def _say_asked(seen: Observation) -> str:
    return _ASKS.get(NVML_ACTIONS.get(int(seen.value or 0), ""), QUOTE)


def _is_fatal(seen: Observation) -> bool:
    return "(Fatal)" in seen.text


def _is_of_helper(seen: Observation) -> bool:
    """Return whether a process below the rank has ended. The rank itself may still be dying."""
    return seen.subject != f"pid:{seen.pid}"


_RESET = ACTIONS["reset_gpu"].removesuffix("; {source}")

ROWS: tuple[Row, ...] = (
    Row(
        name="GPU driver",
        observed=(STUCK_FAMILY,),
        subject=Subject.GPU,
        cause=Cause.GPU_DRIVER_STUCK,
        domain=Domain.GPU,
        says="its driver does not answer: {text} for {age}",
        advice=REBOOT_STUCK_DRIVER,
        since=Since.ANY,
        holds=lambda seen: seen.age_s >= LEAST_STUCK_S,
        is_first_only=True,
        weight=0.75,
    ),
    Row(
        name="slow GPU driver",
        observed=(STUCK_FAMILY,),
        subject=Subject.GPU,
        cause=_GPU,
        says="{text} for {age}",
        strength=Strength.SEPARATES,
        since=Since.ANY,
    ),
    Row(
        name="GPU error",
        observed=(XID, LOST, NEEDS_RESET),
        subject=Subject.GPU,
        cause=_GPU,
        domain=Domain.GPU,
        says=_say_xid,
        advice=_advise_xid,
        holds=is_fault,
    ),
    Row(
        name="uncorrected memory errors",
        observed=("gpu_errors.ecc_uncorrected",),
        subject=Subject.GPU,
        cause=_GPU,
        domain=Domain.GPU,
        says="{value:.0f} new uncorrected memory errors",
        advice=_RESET,
    ),
    Row(
        name="damaged memory",
        observed=("gpu_remap.failed",),
        subject=Subject.GPU,
        cause=_GPU,
        domain=Domain.GPU,
        says="a damaged row of its memory could not be replaced",
        advice=REPLACE_GPU,
        is_state=True,
    ),
    Row(
        name="PCIe error",
        observed=("pcie_error",),
        subject=Subject.GPU,
        cause=_GPU,
        domain=Domain.GPU,
        says="a fatal PCIe error {when}",
        advice=CHECK_PCIE,
        holds=_is_fatal,
    ),
    Row(
        name="PCIe lanes",
        observed=("gpu_pcie_width",),
        subject=Subject.GPU,
        cause=_GPU,
        domain=Domain.GPU,
        says=QUOTE,
        advice=CHECK_PCIE,
        beside=("gpu_errors.pcie_replays",),
    ),
    Row(
        name="recovery action",
        observed=("gpu_recovery",),
        subject=Subject.GPU,
        cause=_GPU,
        domain=Domain.GPU,
        says=_say_asked,
        advice=_RESET,
        is_state=True,
    ),
    Row(
        name="fabric state",
        observed=("gpu_fabric",),
        subject=Subject.GPU,
        cause=_FABRIC,
        domain=Domain.GPU,
        says=QUOTE,
        advice=CHECK_FABRIC,
        is_state=True,
    ),
    Row(
        name="fabric manager",
        observed=("fabric_manager", "fabric_not_ready"),
        subject=Subject.NODE,
        cause=_FABRIC,
        domain=Domain.GPU,
        says=QUOTE,
        advice=CHECK_FABRIC,
        is_state=True,
    ),
    Row(
        name="NVSwitch",
        observed=("sxid",),
        subject=Subject.NODE,
        cause=_FABRIC,
        domain=Domain.GPU,
        says=QUOTE,
        advice=CHECK_NVLINK,
        # The driver's word for errors that stop links.
        holds=lambda seen: ", Fatal, " in seen.text,
    ),
    Row(
        name="NVLink",
        observed=("gpu_nvlink_lost",),
        subject=Subject.LINK,
        cause=_FABRIC,
        domain=Domain.GPU,
        says=QUOTE,
        advice=CHECK_NVLINK,
    ),
    Row(
        name="link",
        observed=("nic_link_lost", "nic_link_down", "nic_fault"),
        subject=Subject.LINK,
        cause=_FABRIC,
        domain=Domain.NETWORK,
        says=QUOTE,
        advice=CHECK_LINK_STATE,
    ),
    Row(
        name="NVLink errors",
        observed=("gpu_errors.nvlink_replay", "gpu_errors.nvlink_recovery"),
        subject=Subject.LINK,
        cause=_FABRIC,
        domain=Domain.GPU,
        says=QUOTE,
        advice=CHECK_NVLINK,
        weight=0.6,
        tier=Tier.WAIT_FOR,
        doubt=LINK_ERRORS_ALONE,
    ),
    Row(
        name="link errors",
        observed=("nic_errors",),
        subject=Subject.LINK,
        cause=_FABRIC,
        domain=Domain.NETWORK,
        says=QUOTE,
        advice=CHECK_LINK_STATE,
        weight=0.6,
        tier=Tier.WAIT_FOR,
        doubt=LINK_ERRORS_ALONE,
    ),
    Row(
        name="far end of a link",
        observed=("nic_far_end",),
        subject=Subject.LINK,
        cause=_FABRIC,
        domain=Domain.NETWORK,
        says="{text}: the path, or the node at its other end",
        advice=CHECK_FAR_END,
        weight=0.6,
        tier=Tier.WAIT_FOR,
        doubt=LINK_ERRORS_ALONE,
    ),
    # Errors that a program causes, and those that follow another one, accuse no GPU.
    Row(
        name="other GPU error",
        observed=(XID,),
        subject=Subject.GPU,
        cause=_GPU,
        says=_say_xid,
        strength=Strength.SEPARATES,
        holds=lambda seen: explain_error(seen) is not None,
    ),
    Row(
        name="corrected memory errors",
        observed=(f"{GPU_ECC}.corrected",),
        subject=Subject.GPU,
        cause=_GPU,
        says=QUOTE,
        strength=Strength.SEPARATES,
        since=Since.NOW,
        holds=lambda seen: (seen.value or 0.0) >= LEAST_ECC_PER_S,
    ),
    Row(
        name="frozen GPU",
        observed=("gpu_frozen",),
        subject=Subject.GPU,
        cause=_GPU,
        says=QUOTE,
        strength=Strength.SEPARATES,
    ),
    Row(
        name="other PCIe error",
        observed=("pcie_error",),
        subject=Subject.GPU,
        cause=_GPU,
        says=QUOTE,
        strength=Strength.SEPARATES,
    ),
    # Most of these are repaired by another try.
    Row(
        name="retries",
        observed=("gpu_errors.nvlink", "gpu_errors.pcie"),
        subject=Subject.GPU,
        cause=_GPU,
        says=QUOTE,
        strength=Strength.SEPARATES,
        is_ordinary=True,
    ),
    Row(
        name="ended helper",
        observed=("segfault", "oom_kill"),
        subject=Subject.PROCESS,
        cause=_BEHIND,
        says=QUOTE,
        strength=Strength.SEPARATES,
        holds=_is_of_helper,
        is_ordinary=True,
    ),
    Row(
        name="kernel log",
        observed=("hung_task", "soft_lockup", "segfault", "oom_kill"),
        subject=Subject.PROCESS,
        cause=_BEHIND,
        says=QUOTE,
        strength=Strength.SEPARATES,
    ),
    # Most of these errors were corrected.
    Row(
        name="machine check",
        observed=("machine_check",),
        subject=Subject.NODE,
        cause=_BEHIND,
        says=QUOTE,
        strength=Strength.SEPARATES,
        is_ordinary=True,
    ),
    Row(
        name="full disk",
        observed=("disk_full",),
        subject=Subject.PROCESS,
        cause=_BEHIND,
        domain=Domain.STORAGE,
        says=QUOTE,
        advice="on {node}: `df -h` and `df -i`; free space, or end what fills it: the rank may go "
        "on by itself",
        strength=Strength.EXPLAINS,
    ),
    Row(
        name="cgroup limit",
        observed=("cpu_limit", "memory_limit"),
        subject=Subject.PROCESS,
        cause=_BEHIND,
        says=QUOTE,
        strength=Strength.SUPPORTS,
        since=Since.NOW,
    ),
)

BY_FAMILY = index_rows(ROWS)

BLAME_NOBODY = {
    "gpu_pattern": "what a GPU does beside the others decides: `causes/odd_gpu.py`",
    "gpu_process": "names a process of a GPU",
    "gpu_open": "names a process of a GPU",
    "gpu_orphan": "a process of an earlier job: the job made steps beside it",
    "gpu_ecc": "ordinary, unless there are many a second; uncorrected ones are in gpu_errors, too",
    "gpu_errors.ecc_corrected": "ordinary: rates are in gpu_ecc",
    "gpu_remap.pending": "the damaged memory is not used, and replaced with the next reset",
    "gpu_pcie_width": "without replays: some GPUs give up lanes to save power",
    "sxid": "errors that are not fatal stop no link",
    "nfs_not_responding": "a rank that waits for storage is seen there, not in a collective",
    "disk_error": "a rank that waits for storage is seen there, not in a collective",
    "nic_rate": "slows a job down and does not stop it",
    "pressure": "slows a node down and does not stop it",
    "shm_full": "stops a program that begins to use it, with an error",
    "shm_small": "stops a program that needs more of it, with an error",
    "clock_step": "waits use a clock that does not jump",
}
"""Families and names of observations that are only shown, at most, and why."""
