"""Advisories: what is wrong with a job or a node although no job hangs. One ordered table.

A row says what it finds, why that matters and what to do. It never opens an incident. Nothing is
stored: an advisory holds while its evidence does, and its age is that of the evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import TypeVar

from watchtower.evidence.gpus import GPU_ECC, LEAST_ECC_PER_S
from watchtower.evidence.launchers import read_meeting
from watchtower.evidence.observed import GPU_SUBJECTS, JobGpus
from watchtower.fleet.configuration import Compared, Configurations, Weight, compare
from watchtower.fleet.nodes import NodeRecord
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.keeper import Keeper
from watchtower.wire.observations import NODE, Observation
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import clean, format_count, name_nodes

MAX_TEXT = 300
"""Characters of the sentence of an advisory."""

MAX_FOUND = 64
"""Findings of one row about one job or node. A node has 16 GPUs and as many links."""

MAX_VALUE = 48
"""Characters of one value that are quoted."""

SETTLE_S = 60.0
"""For so many seconds, ranks and launchers of a job may come one after the other."""

READ_S = 30.0
"""Seconds after which the ranks of a job were read when their programs had begun (20 s, and the
time until the tower has the bodies). Before, one may have been read earlier than another."""

LEAST_LOST_STEPS = 10
"""Fewer steps that are made again are not worth a sentence: every restart repeats some."""


class Level(Enum):
    """How bad it is."""

    FATAL = "fatal"
    """The job cannot work, or what it computes is wrong or lost."""
    SUSPICIOUS = "suspicious"
    """It works, and is likely to fail or to waste time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One thing that a row found."""

    text: str
    """One sentence without a full stop. Text from processes in it is cleaned."""
    since: float
    """Seconds of the monotonic clock: when it began, or was last seen to happen."""
    subject: str = ""
    """What of the job or node it is about: "ranks 3-4", "pci:0000:3b:00", "nic:mlx5_0"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is known of one job, or of one node without a job."""

    now: float
    nodes: Mapping[str, NodeRecord]
    silent: Callable[[NodeRecord], bool]
    """Whether the agent of a node does not report any more."""
    configurations: Configurations
    observations: Callable[[str], tuple[Observation, ...]]
    """What the agent of a node observes, with ages of now."""


FindInJob = Callable[[Scene, Keeper], Iterable[Found]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kind of advisory: of a job (`find`), or of a node (`observed`)."""

    name: str
    level: Level
    why: str
    """Why it matters, one sentence."""
    advice: str
    """What to do. {node}, {job} and {subject} are those of the finding."""
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
        names = {"job": self.job, "node": self.node, "subject": self.found.subject}
        text = self.row.advice
        for name, value in names.items():
            text = text.replace(f"{{{name}}}", clean(value.partition(":")[2] or value, 128))
        return text


def _find_bad_losses(_: Scene, job: Keeper) -> Iterator[Found]:
    bad = job.attempt.bad_losses
    if bad:
        first = min(bad.values(), key=lambda item: item[1])
        ranks = sorted(bad)
        text = f"{name_ranks(ranks)} reported a NaN or infinite loss, first at step {first[0]}"
        yield Found(text=text, since=first[1], subject=name_ranks(ranks))


def _find_lost_steps(_: Scene, job: Keeper) -> Iterator[Found]:
    """Find that the steps begin below the last checkpoint, or anew without any checkpoint."""
    attempt, before = job.attempt, job.attempt.before
    first = attempt.first_step
    if before is None or first is None:
        return
    expected = before.checkpoint_step
    if before.step - first < LEAST_LOST_STEPS or attempt.step() >= before.step:
        return
    if expected is not None and first >= expected:
        return
    saved = (
        "no checkpoint of it was seen"
        if expected is None
        else f"its last complete checkpoint was at step {expected}"
    )
    text = "; ".join(
        (
            f"attempt {attempt.number} began at step {first}",
            f"attempt {before.number} had reached step {before.step}",
            saved,
        )
    )
    yield Found(text=text, since=attempt.began_at)


def _find_changes(scene: Scene, job: Keeper) -> Iterator[Found]:
    attempt, before = job.attempt, job.attempt.before
    if before is None or not attempt.ranks:
        return
    if before.world_size != attempt.world_size:
        text = (
            f"attempt {attempt.number} has {attempt.world_size} ranks, "
            f"attempt {before.number} had {before.world_size}"
        )
        yield Found(text=text, since=attempt.began_at)
    now, then = (f"attempt {each.number}" for each in (attempt, before))
    digests = [(now, attempt.configuration), (then, before.configuration)]
    for each in compare(digests, scene.configurations):
        if each.differs and each.weight not in (Weight.NORMAL, Weight.MEETING):
            values = ", ".join(f"{clean(v, MAX_VALUE)} in {of[0]}" for v, of in each.groups)
            name = clean(each.name, MAX_VALUE)
            yield Found(text=f"{name} is {values}", since=attempt.began_at, subject=name)


def _find_waiting_launchers(scene: Scene, job: Keeper) -> Iterator[Found]:
    attempt = job.attempt
    seen = attempt.launchers.list_evidence(scene.now, _silent_of(scene, attempt.launchers.waiting))
    if attempt.ranks or not seen:
        return
    meeting = read_meeting(seen)
    if meeting.since_last_s > SETTLE_S and meeting.lacking:
        yield Found(
            text=f"{meeting.launcher}: {meeting.describe()}", since=scene.now - meeting.waits_s
        )


def _silent_of(scene: Scene, names: Iterable[str]) -> frozenset[str]:
    return frozenset(n for n in names if n not in scene.nodes or scene.silent(scene.nodes[n]))


def _find_last_arrival(scene: Scene, job: Keeper) -> float:
    """Return when the last rank was found."""
    return max((r.first_seen_at for r in job.attempt.ranks.values()), default=scene.now)


def _find_missing_ranks(scene: Scene, job: Keeper) -> Iterator[Found]:
    attempt, came_at = job.attempt, _find_last_arrival(scene, job)
    missing = attempt.missing_ranks() if scene.now - came_at > SETTLE_S else ()
    if missing and any(attempt.live()):
        count = attempt.world_size - len(attempt.ranks)
        text = (
            f"{format_count(count, 'rank')} of {attempt.world_size} "
            f"{'was' if count == 1 else 'were'} never reported: {name_ranks(missing)}"
        )
        yield Found(text=text, since=came_at, subject=name_ranks(missing))


def _find_shared_gpus(scene: Scene, job: Keeper) -> Iterator[Found]:
    """Find GPUs that several ranks use, while other GPUs of the node are idle."""
    for node, pids in _pids_by_node(job.attempt).items():
        users: dict[str, set[int]] = {}
        known = set[str]()
        for each in scene.observations(node):
            if not each.subject.startswith("pci:") or not each.name.startswith("gpu_"):
                continue
            known.add(each.subject)
            if each.pid in pids and each.family in ("gpu_pattern", "gpu_process"):
                users.setdefault(each.subject, set()).add(pids[each.pid])
        idle = len(known - users.keys())
        of_rank = {rank for ranks in users.values() for rank in ranks}
        for subject, ranks in users.items():
            alone = {r for r in ranks if sum(r in u for u in users.values()) == 1}
            if len(alone) > 1 and idle and len(of_rank) > 1:
                text = (
                    f"{name_ranks(sorted(alone))} use one GPU of {clean(node, 64)} "
                    f"({clean(subject.partition(':')[2], 32)}), and no rank of the job uses "
                    f"{format_count(idle, 'other GPU')}"
                )
                yield Found(
                    text=text, since=job.attempt.began_at, subject=name_ranks(sorted(alone))
                )


Member = TypeVar("Member", bound=Hashable)

MAX_SHOWN_VALUES = 3
"""Values of one difference that are quoted, those of most members first."""


def compare_ranks(scene: Scene, job: Keeper) -> Iterator[Compared[int]]:
    """Yield what is known of the configuration of a job's live ranks, by name."""
    ranks = ((r.vitals.rank, r.vitals.configuration) for r in job.attempt.live())
    return compare(sorted(ranks), scene.configurations)


def compare_nodes(scene: Scene, job: Keeper) -> Iterator[Compared[str]]:
    """Yield what is known of the configuration of a job's nodes, by name."""
    names = sorted({record.key.node for record in job.attempt.live()})
    known = ((n, scene.nodes[n].configuration) for n in names if n in scene.nodes)
    return compare(known, scene.configurations)


def _compare_read(scene: Scene, job: Keeper) -> Iterator[Compared[int]]:
    """Yield the same, if every rank was read since its program has set its own variables."""
    if scene.now - _find_last_arrival(scene, job) > READ_S:
        yield from compare_ranks(scene, job)


def _find_unfit(scene: Scene, job: Keeper) -> Iterator[Found]:
    """Find settings with which the ranks cannot meet, or do not fit together."""
    has_met = job.attempt.step() >= 0
    for each in _compare_read(scene, job):
        is_bad = each.weight is Weight.FATAL or (each.weight is Weight.MEETING and not has_met)
        if each.differs and is_bad:
            yield _describe_difference(each, name_ranks, job)


def _find_different(scene: Scene, job: Keeper) -> Iterator[Found]:
    for each in _compare_read(scene, job):
        if each.odd and each.weight is Weight.SUSPICIOUS:
            yield _describe_difference(each, name_ranks, job)
    for one in compare_nodes(scene, job):
        if one.odd and one.weight is not Weight.NORMAL:
            yield _describe_difference(one, name_nodes, job)


def _describe_difference(
    each: Compared[Member], write: Callable[[Sequence[Member]], str], job: Keeper
) -> Found:
    quoted = [
        f"{clean(value, MAX_VALUE)} on {write(members)}"
        for value, members in reversed(each.groups[:MAX_SHOWN_VALUES])
    ]
    odd = each.odd or each.groups[-1][1]
    text = f"{clean(each.name, MAX_VALUE)} is {', and '.join(quoted)}"
    return Found(text=text, since=job.attempt.began_at, subject=write(odd))


def _pids_by_node(attempt: Attempt) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for record in attempt.live():
        found.setdefault(record.key.node, {})[record.key.pid] = record.vitals.rank
    return found


_FATAL, _SUSPICIOUS = Level.FATAL, Level.SUSPICIOUS

ROWS: tuple[Row, ...] = (
    Row(
        name="nan_loss",
        level=_FATAL,
        why="the steps after it train nothing, and a checkpoint saved now is lost",
        advice="stop {job}, and start it from a checkpoint before that step; check the learning "
        "rate, the data of that step and the precision",
        find=_find_bad_losses,
    ),
    Row(
        name="lost_steps",
        level=_SUSPICIOUS,
        why="the steps between are trained again: the checkpoint was not found or not loaded",
        advice="check which checkpoint {job} has loaded: its path, and whether every rank sees it; "
        "a job that begins anew on purpose loses none",
        find=_find_lost_steps,
    ),
    Row(
        name="waits_for_nodes",
        level=_FATAL,
        why="the launcher starts no rank before all its nodes have joined",
        advice="check on the missing nodes whether the launcher runs, and whether it reaches the "
        "endpoint of the others",
        find=_find_waiting_launchers,
    ),
    Row(
        name="missing_ranks",
        level=_FATAL,
        why="the others wait for them in their first collective, or train without them",
        advice="check on the nodes of these ranks whether their processes run, and whether an "
        "agent reports there: `watchtower jobs` lists what is not watched",
        find=_find_missing_ranks,
    ),
    Row(
        name="shared_gpu",
        level=_FATAL,
        why="they share its memory and its time, and NCCL refuses two ranks on one GPU",
        advice="give each rank its own GPU: `torch.cuda.set_device(LOCAL_RANK)` before the first "
        "use of CUDA, or CUDA_VISIBLE_DEVICES of the launcher",
        find=_find_shared_gpus,
    ),
    Row(
        name="configuration_unfit",
        level=_FATAL,
        why="such ranks do not meet, hang in a collective, or compute different things",
        advice="give all ranks the same value: `watchtower doctor {job}` shows who has which",
        find=_find_unfit,
    ),
    Row(
        name="configuration_differs",
        level=_SUSPICIOUS,
        why="the odd one out is the first to be suspected when the job is slow or hangs",
        advice="check why it is not the same: `watchtower doctor {job}` shows who has which",
        find=_find_different,
    ),
    Row(
        name="attempt_changed",
        level=_SUSPICIOUS,
        why="the global batch and the data of each rank may have changed with it",
        advice="if {job} is not meant to be elastic, check which nodes its launcher has lost",
        find=_find_changes,
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
    pids = _pids_by_node(job.attempt)
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
