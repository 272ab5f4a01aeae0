"""What is wrong with one live job: the functions that rows of `advisories.py` name."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from watchtower.evidence.launchers import read_meeting
from watchtower.evidence.shared_gpus import find_shared_gpus
from watchtower.fleet.configuration import Compared, Configurations, Weight, compare
from watchtower.fleet.nodes import NodeRecord
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.keeper import Keeper
from watchtower.wire.observations import Observation
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import clean, format_count, name_nodes

MAX_VALUE = 48
"""Characters of one value that are quoted."""

SETTLE_S = 60.0
"""For so many seconds, ranks and launchers of a job may come one after the other."""

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
class Scene:
    """What is known of one job, or of one node without a job."""

    now: float
    nodes: Mapping[str, NodeRecord]
    silent: Callable[[NodeRecord], bool]
    """Whether the agent of a node does not report any more."""
    configurations: Configurations
    observations: Callable[[str], tuple[Observation, ...]]
    """What the agent of a node observes, with ages of now."""


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
