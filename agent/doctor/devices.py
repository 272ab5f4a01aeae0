"""Checks of GPUs, their driver, their fabric and their links, from what the collectors see."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from agent.collectors.gpu.metrics import INFO, NVLINKS
from agent.doctor.check import About, Check, Finding, Node, Seen, fail, ok, warn
from watchtower.service.xid_table import explain_xid
from watchtower.wire.checks import CheckState
from watchtower.wire.observations import Observation

RESET = "drain the node and reset the GPU (`nvidia-smi --gpu-reset -i N`), or reboot it"
REBOOT = "drain and reboot the node"
EXCHANGE = "drain the node; the GPU must be exchanged"
LOG = "`dmesg | grep -i nvrm` shows why"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What the observations of a family, or those with one name, mean for a job that starts now."""

    name: str
    state: CheckState
    fix: str

    def matches(self, observation: Observation) -> bool:
        """Return whether it is about an observation."""
        return self.name in (observation.name, observation.family)


GPU_ROWS = (
    Row(name="gpus_missing", state=CheckState.FAIL, fix=f"{LOG}; {REBOOT}"),
    Row(name="gpu_lost", state=CheckState.FAIL, fix=f"{LOG}; {REBOOT}"),
    Row(name="gpu_reset_required", state=CheckState.FAIL, fix=RESET),
    Row(name="gpu_frozen", state=CheckState.FAIL, fix=f"{LOG}; {REBOOT}"),
    Row(name="nvml_stuck", state=CheckState.FAIL, fix=f"{LOG}; {REBOOT}"),
    Row(name="gpu_recovery", state=CheckState.FAIL, fix="drain the node, and do that"),
    Row(name="gpu_remap.failed", state=CheckState.FAIL, fix=EXCHANGE),
    Row(name="gpu_remap.pending", state=CheckState.WARN, fix=RESET),
    Row(name="gpu_errors.ecc_uncorrected", state=CheckState.FAIL, fix=RESET),
    Row(name="gpu_orphan", state=CheckState.WARN, fix="end this process: it holds the GPU"),
)
"""The first row that matches counts. What no row matches says nothing against a job."""

KERNEL_ROWS = (
    Row(name="sxid", state=CheckState.FAIL, fix="drain the node: an NVSwitch has a fault"),
    Row(name="machine_check", state=CheckState.WARN, fix="`dmesg | grep -i 'mce\\|hardware'`"),
    Row(name="soft_lockup", state=CheckState.WARN, fix="`dmesg | grep -A20 lockup` shows where"),
    Row(name="hung_task", state=CheckState.WARN, fix="`dmesg | grep -A20 blocked` shows where"),
    Row(name="disk_error", state=CheckState.WARN, fix="check this disk with `smartctl -a`"),
    Row(name="nfs_not_responding", state=CheckState.WARN, fix="check the file server"),
    Row(name="nic_fault", state=CheckState.WARN, fix="`dmesg` has the card's own words"),
)
PCIE_ROWS = (
    Row(
        name="gpu_pcie_width",
        state=CheckState.WARN,
        fix="drain the node, and have the GPU or its riser seated again",
    ),
    Row(name="pcie_error", state=CheckState.WARN, fix="`dmesg | grep -i aer` names the device"),
)


def find_rows(seen: Seen, rows: Sequence[Row]) -> Iterator[Finding]:
    """Yield what the rows make of the observations: each text once."""
    texts = set()
    for each in seen.observations:
        row = next((row for row in rows if row.matches(each)), None)
        subject = each.subject.removeprefix("pci:") if each.subject.startswith("pci:") else ""
        text = f"GPU {subject}: {each.text}" if subject and each.source == "nvml" else each.text
        if row is not None and (text := text or each.name) not in texts:
            texts.add(text)
            yield Finding(row.state, text, row.fix)


def name_gpus(seen: Seen) -> list[str]:
    """Return the models of the GPUs, one for each GPU."""
    at = INFO.labels.index("model")
    return [labels[at] for labels in seen.values(INFO)]


def judge_gpus(seen: Seen) -> Iterator[Finding]:
    """Yield what is wrong with the GPUs or their driver."""
    if gap := seen.gaps.get("nvml", ""):
        yield fail(gap.removeprefix("GPUs: "), LOG)
    yield from (found := list(find_rows(seen, GPU_ROWS)))
    if gap or found:
        return
    models = name_gpus(seen)
    if not models:
        yield ok("none on this node")
        return
    drivers = {labels[INFO.labels.index("driver")] for labels in seen.values(INFO)}
    names = ", ".join(f"{models.count(each)} x {each}" for each in dict.fromkeys(models))
    yield ok(f"{names}, driver {' '.join(sorted(drivers))}")
    if len(set(models)) > 1:
        yield warn("the GPUs are of several models", "ranks on the slower ones hold up the others")


def judge_kernel(seen: Seen) -> Iterator[Finding]:
    """Yield what the kernel log of the last minutes has against the node."""
    found = list(find_rows(seen, KERNEL_ROWS))
    for each in seen.find("xid"):
        meaning = explain_xid(code := int(each.name.partition(".")[2] or 0))
        if meaning.is_fault:
            where = each.subject.removeprefix("pci:")
            text = f"Xid {code} of GPU {where}, {each.age_s:.0f} s ago: {meaning.means}"
            asked = meaning.action.replace("_", " ")
            state = CheckState.WARN if meaning.action == "restart_app" else CheckState.FAIL
            found.append(Finding(state, text, f"NVIDIA's catalogue asks for: {asked}"))
    yield from found
    if not found:
        gap = seen.gaps.get("kernel_log", "")
        yield ok("not read here" if gap else "no fault in 15 minutes")


BOOT_GRACE_S = 300.0
"""Seconds after boot in which a fabric that is not set up is only a warning. The fabric manager
waits 30 s for the switches, and may be started again; other monitors wait as long."""

FABRIC_FIX = "`systemctl restart nvidia-fabricmanager`; its log is /var/log/fabricmanager.log"


def judge_fabric(seen: Seen) -> Iterator[Finding]:
    """Yield why NVLink cannot be used between the GPUs."""
    severe = warn if seen.uptime_s < BOOT_GRACE_S else fail
    found = [severe(each.text, FABRIC_FIX) for each in seen.find("fabric_manager")]
    for each in seen.find("gpu_fabric"):
        is_limited = "less capacity" in each.text
        how = warn if is_limited else severe
        found.append(how(f"GPU {each.subject.removeprefix('pci:')}: {each.text}", FABRIC_FIX))
    yield from found
    if not found:
        needs = "fabric_manager" not in seen.absent
        yield ok("the fabric manager runs" if needs else "none needed on this node")


def judge_nvlinks(seen: Seen) -> Iterator[Finding]:
    """Yield the GPUs that have fewer NVLinks than the others of the node."""
    up = {gpu: int(n) for (gpu, state), n in seen.values(NVLINKS).items() if state == "up"}
    usual = max(up.values(), default=0)
    odd = {gpu: n for gpu, n in up.items() if n < usual}
    for gpu, count in odd.items():
        text = f"GPU {gpu} has {count} NVLinks up, the others have {usual}"
        yield fail(text, f"`nvidia-smi nvlink --status` shows which; {RESET}")
    for each in seen.find("gpu_nvlink_lost"):
        yield fail(f"GPU {each.subject.removeprefix('pci:')}: {each.text}", RESET)
    if not odd:
        yield ok(f"{usual} up on each of {len(up)} GPUs" if usual else "none on this node")


def judge_pcie(seen: Seen) -> Iterator[Finding]:
    """Yield the links that are slower than they should be."""
    found = list(find_rows(seen, PCIE_ROWS))
    yield from found or [ok("all GPUs have all lanes" if name_gpus(seen) else "no GPUs")]


def _check(name: str, judge: Callable[[Seen], Iterator[Finding]]) -> Check[Seen]:
    return Check(name=name, about=About.NODE, read=Node.collected, judge=judge)


GPUS = _check("GPUs", judge_gpus)
KERNEL = _check("kernel log", judge_kernel)
FABRIC = _check("fabric manager", judge_fabric)
NVLINK = _check("NVLink", judge_nvlinks)
PCIE = _check("PCIe", judge_pcie)
