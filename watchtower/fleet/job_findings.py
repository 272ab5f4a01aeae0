"""What is wrong with one live job: the functions that rows of `advisories.py` name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TypeVar

from watchtower.evidence.kernel import file_system_of
from watchtower.evidence.launchers import read_meeting
from watchtower.evidence.shared_gpus import find_shared_gpus
from watchtower.fleet.configuration import Compared, Configurations, Weight, compare
from watchtower.fleet.half_started import SETTLE_S, HalfStarted
from watchtower.fleet.nodes import NodeRecord
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.keeper import Keeper
from watchtower.wire.dumps import Mount
from watchtower.wire.observations import WRITES_FILE, Observation
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import clean, format_count, name_nodes, name_some

MAX_VALUE = 48
"""Characters of one value that are quoted."""

READ_S = 30.0
"""Seconds after which the ranks of a job were read when their programs had begun (20 s, and the
time until the tower has the bodies). Before, one may have been read earlier than another."""

LEAST_LOST_STEPS = 10
"""Fewer steps that are made again are not worth a sentence: every restart repeats some."""


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
class Writer:
    """A process that had a file of a checkpoint open for writing."""

    node: str
    pid: int
    path: str
    at: float
    """When it was last seen to have it open."""


WritersByFile = Mapping[str, Sequence[Writer]]


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
    writers: Callable[[], WritersByFile]
    """The processes that have written files of checkpoints in the last minutes."""
    deadlocks: Callable[[], Sequence[tuple[HalfStarted, ...]]] = lambda: ()
    """Returns the groups of half-started jobs that hold each other's places."""


def find_bad_losses(_: Scene, job: Keeper) -> Iterator[Found]:
    """Find ranks whose last loss is NaN or infinite."""
    bad = job.attempt.bad_losses
    if bad:
        first = min(bad.values(), key=lambda item: item[1])
        ranks = sorted(bad)
        text = f"{name_ranks(ranks)} reported a NaN or infinite loss, first at step {first[0]}"
        yield Found(text=text, since=first[1], subject=name_ranks(ranks))


def find_lost_steps(_: Scene, job: Keeper) -> Iterator[Found]:
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


def find_changes(scene: Scene, job: Keeper) -> Iterator[Found]:
    """Find what differs between this attempt and the one before."""
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


def find_waiting_launchers(scene: Scene, job: Keeper) -> Iterator[Found]:
    """Find launchers that wait for others longer than usual."""
    attempt = job.attempt
    seen = attempt.launchers.list_evidence(scene.now, _silent_of(scene, attempt.launchers.waiting))
    if attempt.ranks or not seen:
        return
    meeting = read_meeting(seen)
    if meeting.since_last_s > SETTLE_S and meeting.lacking:
        yield Found(
            text=f"{meeting.launcher}: {meeting.describe()}", since=scene.now - meeting.waits_s
        )


def find_held_places(scene: Scene, job: Keeper) -> Iterator[Found]:
    """Find other half-started jobs that hold what this job lacks, while it holds what they lack."""
    for group in scene.deadlocks():
        others = [each for each in group if each.job != job.name]
        for own in (each for each in group if each.job == job.name):
            names = name_some([clean(each.job, MAX_VALUE) for each in others], len(others))
            text = (
                f"it holds {name_nodes(sorted(own.holds))} and lacks "
                f"{format_count(own.lacks, 'node')}; {names} "
                f"{'holds' if len(others) == 1 else 'hold'} "
                f"{name_nodes(sorted(frozenset[str]().union(*(o.holds for o in others))))}"
            )
            yield Found(text=text, since=max(each.since for each in group), subject=names)


def _silent_of(scene: Scene, names: Iterable[str]) -> frozenset[str]:
    return frozenset(n for n in names if n not in scene.nodes or scene.silent(scene.nodes[n]))


def _find_last_arrival(scene: Scene, job: Keeper) -> float:
    """Return when the last rank was found."""
    return max((r.first_seen_at for r in job.attempt.ranks.values()), default=scene.now)


def find_missing_ranks(scene: Scene, job: Keeper) -> Iterator[Found]:
    """Find ranks of the world size that were never reported."""
    attempt, came_at = job.attempt, _find_last_arrival(scene, job)
    missing = attempt.missing_ranks() if scene.now - came_at > SETTLE_S else ()
    if missing and any(attempt.live()):
        count = attempt.world_size - len(attempt.ranks)
        text = (
            f"{format_count(count, 'rank')} of {attempt.world_size} "
            f"{'was' if count == 1 else 'were'} never reported: {name_ranks(missing)}"
        )
        yield Found(text=text, since=came_at, subject=name_ranks(missing))


def find_shared(scene: Scene, job: Keeper) -> Iterator[Found]:
    """Find GPUs that several ranks use, while the job may use others of the node."""
    for node, pids in pids_by_node(job.attempt).items():
        for each in find_shared_gpus(node, scene.observations(node), pids):
            ranks = name_ranks(each.ranks)
            text = f"{ranks} use {each.describe()}"
            yield Found(text=text, since=job.attempt.began_at, subject=ranks)


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


def find_unfit(scene: Scene, job: Keeper) -> Iterator[Found]:
    """Find settings with which the ranks cannot meet, or do not fit together."""
    has_met = job.attempt.step() >= 0
    for each in _compare_read(scene, job):
        is_bad = each.weight is Weight.FATAL or (each.weight is Weight.MEETING and not has_met)
        if each.differs and is_bad:
            yield _describe_difference(each, name_ranks, job)


def find_different(scene: Scene, job: Keeper) -> Iterator[Found]:
    """Find one rank or node that is set up in another way than the others."""
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


def pids_by_node(attempt: Attempt) -> dict[str, dict[int, int]]:
    """Return the ranks of the live processes, by node and pid."""
    found: dict[str, dict[int, int]] = {}
    for record in attempt.live():
        found.setdefault(record.key.node, {})[record.key.pid] = record.vitals.rank
    return found


MANY_TIMES = 3
"""A checkpoint is old after so many times the usual number of steps: evaluations in between and
longer epochs shift it by less."""


def find_old_checkpoint(_: Scene, job: Keeper) -> Iterator[Found]:
    """Find that the last complete checkpoint is older than all before it have become."""
    attempt = job.attempt
    last, usual = attempt.checkpoint_step, attempt.checkpoints.usual
    if last is not None and usual and attempt.step() - last > MANY_TIMES * usual:
        text = (
            f"its last complete checkpoint was at step {last}, {attempt.step() - last} steps ago; "
            f"before, there was one every {format_count(usual, 'step')}"
        )
        yield Found(text=text, since=attempt.began_at)


SAME_TIME_S = 15.0
"""Two processes have a file open at one time if both were seen with it within so many seconds. The
agent reads every 5 s."""

MAX_WRITERS = 1024
"""Processes that write files of checkpoints, of all nodes, that are compared."""


def find_writers(seen: Iterable[tuple[str, Observation]], now: float) -> WritersByFile:
    """Return who writes which file, from the observations of nodes.

    A file of a local disk is one of its node. One on a network file system is the same everywhere.
    """
    found: dict[str, list[Writer]] = defaultdict(list)
    written = ((node, each) for node, each in seen if each.family == WRITES_FILE)
    for node, each in islice(written, MAX_WRITERS):
        kind = each.subject.split(":")[1:2]
        scope = file_system_of(Mount(kind=kind[0] if kind else "", source="", point="")).scope
        key = each.subject if scope == "cluster" else f"{node} {each.subject}"
        if each.pid is not None:
            at = now - each.age_s
            found[key].append(Writer(node=node, pid=each.pid, path=each.text, at=at))
    return found


def find_shared_files(scene: Scene, job: Keeper) -> Iterator[Found]:
    """Find files of checkpoints that a rank writes while another process has them open, too."""
    pids = pids_by_node(job.attempt)
    for writers in scene.writers().values():
        both = _find_together(writers)
        ranks = sorted(pids[node][pid] for node, pid in both if pid in pids.get(node, {}))
        if not ranks:
            continue
        others = [
            f"pid {pid} of {clean(node, MAX_VALUE)}"
            for node, pid in both
            if pid not in pids.get(node, {})
        ]
        who = " and ".join([name_ranks(ranks), *others[:1]])
        path = clean(next(iter(both.values())).path, 2 * MAX_VALUE)
        since = min(each.at for each in both.values())
        yield Found(text=f"{who} write one file: {path}", since=since, subject=name_ranks(ranks))


def _find_together(writers: Sequence[Writer]) -> dict[tuple[str, int], Writer]:
    """Return the processes that write one file at one time, by node and pid. The number of a
    removed file is used again, so its name counts, too.

    A process has a partner if one of its neighbours in time is another process.
    """
    by_name: dict[str, list[Writer]] = defaultdict(list)
    for each in sorted(writers, key=lambda writer: writer.at):
        by_name[each.path.rpartition("/")[2]].append(each)
    together = {
        (each.node, each.pid)
        for named in by_name.values()
        for pair in pairwise(named)
        if len({(one.node, one.pid) for one in pair}) > 1 and pair[1].at - pair[0].at <= SAME_TIME_S
        for each in pair
    }
    known = ((each.node, each.pid) for each in writers)
    return {key: each for key, each in zip(known, writers, strict=True) if key in together}


RDMA, CHANNELS, NVLINKS = "rdma", "channels", "nvlinks up"
"""Names in configurations: whether a rank has a card of InfiniBand or RoCE open, over what NCCL
talks, and which NVLinks of a node are up."""


def _list_bodies(
    scene: Scene, job: Keeper
) -> Iterator[tuple[str, Mapping[str, str], list[tuple[int, Mapping[str, str]]]]]:
    """Yield each node of a job, its configuration, and those of its ranks there."""
    ranks: dict[str, list[tuple[int, Mapping[str, str]]]] = defaultdict(list)
    for record in job.attempt.live():
        body = scene.configurations.find(record.vitals.configuration)
        if body is not None:
            ranks[record.key.node].append((record.vitals.rank, body))
    for node in sorted(ranks):
        known = scene.nodes.get(node)
        body = scene.configurations.find(known.configuration) if known is not None else None
        yield node, body or {}, sorted(ranks[node], key=lambda item: item[0])


def find_tcp(scene: Scene, job: Keeper) -> Iterator[Found]:
    """Find ranks that talk over TCP to other nodes, although their node has an active card."""
    if len({record.key.node for record in job.attempt.live()}) < 2:
        return
    for node, facts, ranks in _list_bodies(scene, job):
        ports = [
            name.removeprefix("state ")
            for name, value in facts.items()
            if name.startswith("state ") and value.endswith("ACTIVE")
        ]
        over_tcp = [
            (rank, body)
            for rank, body in ranks
            if body.get(RDMA) == "not in use" or "NET/Socket" in body.get(CHANNELS, "")
        ]
        if not ports or not over_tcp:
            continue
        rate = facts.get(f"rate {ports[0]}", "").partition(" (")[0]
        text = (
            f"{name_ranks([rank for rank, _ in over_tcp])} of {clean(node, MAX_VALUE)}: no card of "
            f"InfiniBand or RoCE is in use, and {format_count(len(ports), 'port')} of the node "
            f"{'is' if len(ports) == 1 else 'are'} active ({clean(ports[0], MAX_VALUE)}"
            f"{f', {clean(rate, MAX_VALUE)}' if rate else ''})"
            f"{_why_tcp(over_tcp[0][1])}"
        )
        yield Found(text=text, since=job.attempt.began_at, subject=clean(node, MAX_VALUE))


def _why_tcp(body: Mapping[str, str]) -> str:
    """Return "; NCCL_IB_DISABLE is 1", if a variable of the rank decides it."""
    decides = (("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "Socket"))
    return next((f"; {name} is {value}" for name, value in decides if body.get(name) == value), "")


def find_without_gpudirect(scene: Scene, job: Keeper) -> Iterator[Found]:
    """Find ranks whose channels of InfiniBand copy through the memory of the host."""
    for node, facts, ranks in _list_bodies(scene, job):
        slow = [
            rank
            for rank, body in ranks
            if (kinds := body.get(CHANNELS, "").split(", "))
            and any(each.startswith("NET/") and each != "NET/Socket" for each in kinds)
            and not any(each.endswith("/GDRDMA") for each in kinds)
        ]
        if slow and facts.get("gpus"):
            loaded = "is loaded" if facts.get("nvidia_peermem") else "is not loaded"
            text = (
                f"NCCL's network channels of {name_ranks(slow)} of {clean(node, MAX_VALUE)} are "
                f"without GPUDirect; nvidia_peermem {loaded}"
            )
            yield Found(text=text, since=job.attempt.began_at, subject=clean(node, MAX_VALUE))


def find_without_nvlink(scene: Scene, job: Keeper) -> Iterator[Found]:
    """Find ranks that exchange data through the memory of a host whose GPUs have NVLinks."""
    for node, facts, ranks in _list_bodies(scene, job):
        slow = [rank for rank, body in ranks if "SHM" in body.get(CHANNELS, "").split(", ")]
        links = facts.get(NVLINKS, "")
        if slow and links and " 0 of " not in f" {links.partition(' x ')[2]}":
            text = (
                f"NCCL's channels of {name_ranks(slow)} of {clean(node, MAX_VALUE)} go through "
                f"shared memory, and NVLinks are up: {clean(links, MAX_VALUE)}"
            )
            yield Found(text=text, since=job.attempt.began_at, subject=clean(node, MAX_VALUE))
