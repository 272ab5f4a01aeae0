"""Advisories: what is wrong with a job or a node although no job hangs. One ordered table.

A row says what it finds, why that matters and what to do. It never opens an incident. Nothing is
stored: an advisory holds while its evidence does, and its age is that of the evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice

from watchtower.evidence.gpus import GPU_ECC, LEAST_ECC_PER_S
from watchtower.evidence.observed import GPU_SUBJECTS, JobGpus
from watchtower.fleet.job_findings import (
    Found,
    Scene,
    find_bad_losses,
    find_changes,
    find_different,
    find_held_places,
    find_lost_steps,
    find_missing_ranks,
    find_old_checkpoint,
    find_shared,
    find_shared_files,
    find_tcp,
    find_unfit,
    find_waiting_launchers,
    find_without_gpudirect,
    find_without_nvlink,
    pids_by_node,
)
from watchtower.jobs.keeper import Keeper
from watchtower.wire.observations import NODE, Observation
from watchtower.writing.text import clean, quote_name

MAX_TEXT = 300
"""Characters of the sentence of an advisory."""

MAX_FOUND = 64
"""Findings of one row about one job or node. A node has 16 GPUs and as many links."""


class Level(Enum):
    """How bad it is."""

    FATAL = "fatal"
    """The job cannot work, or what it computes is wrong or lost."""
    SUSPICIOUS = "suspicious"
    """It works, and is likely to fail or to waste time."""


FindInJob = Callable[[Scene, Keeper], Iterable[Found]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kind of advisory: of a job (`find`), or of a node (`observed`)."""

    name: str
    level: Level
    why: str
    """Why it matters, one sentence."""
    advice: str
    """What to do. {node}, {job} and {subject} are those of the finding, {command} compares the
    ranks of the job."""
    find: FindInJob | None = None
    observed: tuple[str, ...] = ()
    """Beginnings of names of observations."""
    holds: Callable[[Observation], bool] = lambda _: True


@dataclass(frozen=True, slots=True, kw_only=True)
class Advisory:
    """One advisory about a job or a node."""

    row: Row
    found: Found
    job: str = ""
    node: str = ""

    @property
    def advice(self) -> str:
        """What to do, with the names of what it is about."""
        subject = self.found.subject
        names = {
            "job": clean(self.job, 128),
            "command": f"`watchtower doctor {quote_name(self.job) or 'JOB'}`",
            "node": clean(self.node, 128),
            "subject": clean(subject.partition(":")[2] or subject, 128),
        }
        text = self.row.advice
        for name, value in names.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    @property
    def how_to_silence(self) -> str:
        """The command and the setting that silence it."""
        kind, name = ("job", self.job) if self.job else ("node", self.node)
        chosen = f"--{kind} {quote_name(name) or kind.upper()}"
        off = f'`advisories_off = ["{self.row.name}"]` in [tower]'
        return f"`watchtower silence --for 1d {chosen}`; for all, {off}"


_FATAL, _SUSPICIOUS = Level.FATAL, Level.SUSPICIOUS

ROWS: tuple[Row, ...] = (
    Row(
        name="nan_loss",
        level=_FATAL,
        why="the steps after it train nothing, and a checkpoint saved now is lost",
        advice="stop {job}, and start it from a checkpoint before that step; check the learning "
        "rate, the data of that step and the precision",
        find=find_bad_losses,
    ),
    Row(
        name="lost_steps",
        level=_SUSPICIOUS,
        why="the steps between are trained again: the checkpoint was not found or not loaded",
        advice="check which checkpoint {job} has loaded: its path, and whether every rank sees it; "
        "a job that begins anew on purpose loses none",
        find=find_lost_steps,
    ),
    Row(
        name="waits_for_nodes",
        level=_FATAL,
        why="the launcher starts no rank before all its nodes have joined",
        advice="check on the missing nodes whether the launcher runs, and whether it reaches the "
        "endpoint of the others",
        find=find_waiting_launchers,
    ),
    Row(
        name="places_held",
        level=_FATAL,
        why="half-started jobs that hold each other's places never start",
        advice="end {job}, or what it waits for: {subject}; let the scheduler start all nodes of a "
        "job or none (gang scheduling)",
        find=find_held_places,
    ),
    Row(
        name="missing_ranks",
        level=_FATAL,
        why="the others wait for them in their first collective, or train without them",
        advice="check on the nodes of these ranks whether their processes run, and whether an "
        "agent reports there: `watchtower jobs` lists what is not watched",
        find=find_missing_ranks,
    ),
    Row(
        name="shared_gpu",
        level=_FATAL,
        why="they share its memory and its time, and NCCL refuses two ranks on one GPU",
        advice="give each rank its own GPU: `torch.cuda.set_device(LOCAL_RANK)` before the first "
        "use of CUDA, or CUDA_VISIBLE_DEVICES of the launcher",
        find=find_shared,
    ),
    Row(
        name="configuration_unfit",
        level=_FATAL,
        why="such ranks do not meet, hang in a collective, or compute different things",
        advice="give all ranks the same value: {command} shows who has which",
        find=find_unfit,
    ),
    Row(
        name="configuration_differs",
        level=_SUSPICIOUS,
        why="the odd one out is the first to be suspected when the job is slow or hangs",
        advice="check why it is not the same: {command} shows who has which",
        find=find_different,
    ),
    Row(
        name="shared_checkpoint",
        level=_FATAL,
        why="the file is mixed of both, and the next start cannot load it",
        advice="let one rank save (`if rank == 0`), or give each rank and each job its own file",
        find=find_shared_files,
    ),
    Row(
        name="old_checkpoint",
        level=_SUSPICIOUS,
        why="all steps since then are lost when the job ends",
        advice="check whether its checkpoints fail: the log of rank 0, and the room where they are "
        "stored",
        find=find_old_checkpoint,
    ),
    Row(
        name="tcp",
        level=_SUSPICIOUS,
        why="TCP is several times slower, and it is chosen silently when a card cannot be used",
        advice="in the container: /dev/infiniband and libibverbs must be there, and memlock must "
        "have no limit; NCCL_DEBUG=INFO shows why in the lines `NET/IB`",
        find=find_tcp,
    ),
    Row(
        name="no_gpudirect",
        level=_SUSPICIOUS,
        why="each byte is copied through the memory of the host, which halves the bandwidth",
        advice="on {subject}: `modprobe nvidia-peermem`, or a kernel with dma-buf; "
        "NCCL_NET_GDR_LEVEL must not forbid it",
        find=find_without_gpudirect,
    ),
    Row(
        name="no_nvlink",
        level=_SUSPICIOUS,
        why="shared memory has a tenth of the bandwidth of NVLink",
        advice="check NCCL_P2P_DISABLE and NCCL_P2P_LEVEL, and whether each container sees all "
        "GPUs of its ranks; on {subject}: `nvidia-smi topo -m`",
        find=find_without_nvlink,
    ),
    Row(
        name="attempt_changed",
        level=_SUSPICIOUS,
        why="the global batch and the data of each rank may have changed with it",
        advice="if {job} is not meant to be elastic, check which nodes its launcher has lost",
        find=find_changes,
    ),
    Row(
        name="fabric_down",
        level=_FATAL,
        why="a rank that starts here hangs or fails before its first collective",
        advice="on {node}: `systemctl status nvidia-fabricmanager`, and `nvidia-smi -q` shows the "
        "fabric state of every GPU",
        observed=("fabric_manager", "fabric_not_ready", "gpu_fabric"),
    ),
    Row(
        name="gpu_lost",
        level=_FATAL,
        why="a job that uses this GPU fails or hangs",
        advice="drain {node}; `nvidia-smi` and its kernel log show whether GPU {subject} needs a "
        "reset or the node a reboot",
        observed=("gpu_lost", "gpu_reset_required", "gpu_recovery", "nvml_stuck", "gpu_frozen"),
    ),
    Row(
        name="gpu_memory",
        level=_FATAL,
        why="results may be wrong: watchtower cannot see that, only the counters of the node",
        advice="drain {node} and test GPU {subject}: `dcgmi diag -r 3`; compare a checksum of the "
        "weights between the data-parallel ranks",
        observed=("gpu_errors.ecc_uncorrected", f"{GPU_ECC}.uncorrected", "gpu_remap.failed"),
    ),
    Row(
        name="gpu_memory_wears",
        level=_SUSPICIOUS,
        why="damaged memory is replaced only at a reset, and many corrected errors slow a GPU down",
        advice="reset GPU {subject} of {node} when no job uses it: `nvidia-smi --gpu-reset`",
        observed=("gpu_remap.pending", f"{GPU_ECC}.corrected"),
        holds=lambda seen: seen.family != GPU_ECC or (seen.value or 0.0) >= LEAST_ECC_PER_S,
    ),
    Row(
        name="gpu_links",
        level=_SUSPICIOUS,
        why="collectives over this link are slow, and hang if it is lost",
        advice="on {node}: `nvidia-smi nvlink --status`, and `lspci -vv -s {subject}` shows the "
        "lanes of PCIe (LnkSta)",
        observed=("gpu_nvlink_lost", "gpu_errors.nvlink", "gpu_pcie_width", "gpu_errors.pcie"),
    ),
    Row(
        name="network_link",
        level=_SUSPICIOUS,
        why="collectives over this link are slow, and hang if it is lost",
        advice="on {node}: `ip -s link` and `ibstat` show the state and the errors of {subject}; "
        "check its cable and its switch port",
        observed=(
            "nic_link_lost",
            "nic_link_down",
            "nic_fault",
            "nic_errors",
            "nic_far_end",
            "nic_rate",
        ),
    ),
    Row(
        name="gpu_throttled",
        level=_SUSPICIOUS,
        why="the slowest GPU sets the pace of all ranks",
        advice="on {node}: `nvidia-smi -q -d PERFORMANCE` shows whether heat or power limits it",
        observed=("gpu_pattern.throttled",),
    ),
    Row(
        name="gpu_orphan",
        level=_SUSPICIOUS,
        why="its memory is missing in the next job on this GPU",
        advice="end the process that is left on {node}, or reset GPU {subject}",
        observed=("gpu_orphan",),
    ),
    Row(
        name="shm",
        level=_SUSPICIOUS,
        why="DataLoader workers and NCCL fail or crash when /dev/shm is full",
        advice="on {node}: `ls -l /dev/shm` shows what was left behind; give containers more with "
        "--shm-size, or an emptyDir with `medium: Memory`",
        observed=("shm_full", "shm_small"),
    ),
    Row(
        name="clock",
        level=_SUSPICIOUS,
        why="timeouts and times in logs are wrong",
        advice="on {node}: `timedatectl` shows whether its clock is synchronised",
        observed=("clock_step",),
    ),
    Row(
        name="node_unfit",
        level=_FATAL,
        why="a job that uses this fails or hangs on this node",
        advice="on {node}: `watchtower-agent doctor --about node` has the fix",
        observed=("node_unfit",),
    ),
    Row(
        name="node_limited",
        level=_SUSPICIOUS,
        why="a job that uses this is slow on this node",
        advice="on {node}: `watchtower-agent doctor --about node` has the fix",
        observed=("node_limited",),
    ),
)
"""In the order in which they are shown, those that are fatal first."""

BY_NAME = {row.name: row for row in ROWS}


def advise_only_job(scene: Scene, job: Keeper) -> Iterator[Advisory]:
    """Yield what is wrong with a live job, without what is wrong with its nodes."""
    if job.attempt.ranks and not any(job.attempt.live()):
        return
    for row in ROWS:
        if row.find is not None:
            for found in islice(row.find(scene, job), MAX_FOUND):
                yield Advisory(row=row, found=found, job=job.name)


def advise_job(scene: Scene, job: Keeper) -> Iterator[Advisory]:
    """Yield what is wrong with a live job, and with what it uses of its nodes."""
    yield from advise_only_job(scene, job)
    pids = pids_by_node(job.attempt)
    for node in sorted(pids):
        gpus = JobGpus(scene.observations(node), list(pids[node]))
        for each in advise_node(scene, node):
            subject = each.found.subject
            if not subject.startswith(GPU_SUBJECTS) or gpus.uses(subject) is not False:
                yield each


def advise_node(scene: Scene, node: str) -> Iterator[Advisory]:
    """Yield what is wrong with a node."""
    observations = scene.observations(node)
    if not observations or node not in scene.nodes or scene.silent(scene.nodes[node]):
        return
    for row in ROWS:
        found = [
            each for each in observations if each.name.startswith(row.observed) and row.holds(each)
        ]
        for each in _newest_by_subject(found)[:MAX_FOUND] if row.observed else ():
            subject = "" if each.subject == NODE else clean(each.subject, 64)
            text = clean(each.text, MAX_TEXT) or row.name.replace("_", " ")
            since = scene.now - each.age_s
            found_one = Found(text=text, since=since, subject=subject)
            yield Advisory(row=row, found=found_one, node=node)


def _newest_by_subject(found: Sequence[Observation]) -> list[Observation]:
    newest: dict[str, Observation] = {}
    for each in sorted(found, key=lambda each: each.age_s):
        newest.setdefault(each.subject, each)
    return [newest[subject] for subject in sorted(newest)]
