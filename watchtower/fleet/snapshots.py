"""Joins the snapshots of any number of nodes to one case for each job.

The messages in a snapshot enter the fleet in the same way as those of an agent, so that a claim of
a rank, an attempt or a digest is checked by the same code. All snapshots of a job count as taken at
one moment: a hung job does not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from watchtower.evidence.case import Case, Presence, join_case
from watchtower.evidence.movement import read_movement
from watchtower.fleet.fleet import Fleet
from watchtower.fleet.found_live import add_written
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.case_inputs import collect_on_demand, split_case
from watchtower.jobs.detector import Detector
from watchtower.jobs.keeper import Keeper
from watchtower.jobs.samples import Samples
from watchtower.policy import Policy
from watchtower.wire.dumps import DumpBatch, SentBatch
from watchtower.wire.report import ProcessState, Report
from watchtower.wire.snapshot import Snapshot
from watchtower.wire.verdict import Status
from watchtower.writing.text import clean, format_duration, name_nodes

JobName = tuple[str, str]
"""Name and owner."""


SHORT_VIEW = (
    "the two rounds of these snapshots are {} apart and no rank has heartbeats: a step that takes "
    "longer looks the same, and so do short steps if ranks are at the same line twice by chance"
)

MAX_GAPS = 8
"""Sentences on what the snapshots of one job lack. There are a few kinds."""

MAX_GAP = 240
"""Characters of such a sentence."""

YOUNG_STALL = (
    "the last step of the rank that stopped first is {} old: a step or a pause that takes longer "
    "looks the same"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSnapshot:
    """One job in the snapshots of its nodes."""

    job: str
    owner: str
    status: Status
    """SUSPECT if the job may hang. HEALTHY if it made progress between the two rounds."""
    reason: str
    """A clause on the status."""
    step: int | None
    case: Case
    taken_at: float
    """UNIX seconds of the latest snapshot."""
    apart_s: float
    """Seconds between the earliest and the latest snapshot, by the clocks of their nodes."""
    caveat: str = ""
    """Why a suspect job may be healthy; empty if its last step is long ago."""
    gaps: tuple[str, ...] = ()
    """What its snapshots lack, by node."""
    replaced: tuple[int, ...] = ()
    """Indices of snapshots that were left out: there is a later one of the same node."""


def join_snapshots(
    snapshots: Sequence[Snapshot], policy: Policy | None = None
) -> list[JobSnapshot]:
    """Return every job in the snapshots, in the order of names."""
    policy = policy or Policy()
    by_job: dict[JobName, list[int]] = {}
    for number, snapshot in enumerate(snapshots):
        for key in sorted({(rank.job, rank.owner) for rank in snapshot.reports[-1].ranks}):
            by_job.setdefault(key, []).append(number)
    return [_join_job(key, by_job[key], snapshots, policy) for key in sorted(by_job)]


def _join_job(
    key: JobName, numbers: Sequence[int], snapshots: Sequence[Snapshot], policy: Policy
) -> JobSnapshot:
    latest: dict[str, int] = {}
    for number in sorted(numbers, key=lambda each: snapshots[each].taken_at):
        latest[snapshots[number].node] = number
    chosen = [snapshots[number] for number in sorted(latest.values())]
    now = max(snapshot.gap_s for snapshot in chosen)
    fleet = Fleet(policy)
    for snapshot in chosen:
        fleet.take_report(_only(snapshot.reports[0], key), now - snapshot.gap_s)
    before = _step_of(fleet)
    for snapshot in chosen:
        fleet.take_report(_only(snapshot.reports[1], key), now)
    batches = [batch for each in chosen for batch in each.dumps if (batch.job, batch.owner) == key]
    for number, batch in enumerate(batches):
        # The bodies are decoded already, so that the fleet keeps their numbers in their place.
        fleet.take_dumps(SentBatch(batch, b"%d" % number), now)
    job = next(iter(fleet.jobs.values()))
    status, reason = _judge(job, before, batches, policy, now)
    case = _make_case(fleet, job, batches, Detector(policy), now)
    taken = [snapshot.taken_at for snapshot in chosen]
    return JobSnapshot(
        job=key[0],
        owner=key[1],
        status=status,
        reason=reason,
        step=_step_of(fleet),
        case=case,
        caveat=_find_caveat(case, policy) if status is Status.SUSPECT else "",
        gaps=_list_gaps(key, chosen),
        taken_at=max(taken),
        apart_s=max(taken) - min(taken),
        replaced=tuple(number for number in numbers if number not in latest.values()),
    )


def _list_gaps(key: JobName, snapshots: Iterable[Snapshot]) -> tuple[str, ...]:
    """Return what these snapshots lack of a job. Nodes that lack the same have one sentence."""
    nodes: dict[str, list[str]] = {}
    for snapshot in snapshots:
        for text in dict.fromkeys(gap.text for gap in snapshot.gaps if (gap.job, gap.owner) == key):
            nodes.setdefault(clean(text, MAX_GAP), []).append(snapshot.node)
    return tuple(f"{name_nodes(names)}: {text}" for text, names in list(nodes.items())[:MAX_GAPS])


def _only(report: Report, key: JobName) -> Report:
    ranks = tuple(rank for rank in report.ranks if (rank.job, rank.owner) == key)
    return replace(report, ranks=ranks, jobs=(), gone=())


def _make_case(
    fleet: Fleet, job: Keeper, batches: Sequence[DumpBatch], detector: Detector, now: float
) -> Case:
    inputs = collect_on_demand(job.attempt, fleet.nodes, detector, float("-inf"), now)
    parts, numbers = split_case(inputs)
    case = add_written(join_case(parts, [batches[int(number)] for number in numbers]))
    # A rank in no snapshot may run on a node of which no file was given.
    ranks = tuple(
        replace(rank, presence=Presence.UNREPORTED) if rank.presence is Presence.MISSING else rank
        for rank in case.ranks
    )
    return replace(case, ranks=ranks)


def _judge(
    job: Keeper, before: int | None, batches: Sequence[DumpBatch], policy: Policy, now: float
) -> tuple[Status, str]:
    """Return the status of a job, and a clause with the reason."""
    attempt = job.attempt
    live = list(attempt.live())
    if not live:
        return Status.ENDED, "its ranks ended during the snapshot"
    if all(record.vitals.state is ProcessState.STOPPED for record in live):
        return Status.SUSPENDED, "every rank is stopped (SIGSTOP)"
    beat_at = attempt.last_beat_of_all()
    if beat_at is None:
        return _judge_positions(attempt, batches, policy, now)
    if before is not None and attempt.step() > before:
        return Status.HEALTHY, f"it made step {attempt.step()} during the snapshot"
    age_s = now - beat_at
    if age_s < policy.suspect_floor_s:
        ago = format_duration(age_s)
        return Status.HEALTHY, f"the last heartbeat of every rank is at most {ago} old"
    return Status.SUSPECT, f"a rank has no heartbeat for {format_duration(age_s)}"


def _judge_positions(
    attempt: Attempt, batches: Iterable[DumpBatch], policy: Policy, now: float
) -> tuple[Status, str]:
    """Compare the two rounds of a job without heartbeats: in a hang, a rank does not change.

    A rank of a healthy job is often at the same line twice. It moved if it moved data and its
    training thread ran between the rounds. In a hang, the ranks that wait do not run; if they poll
    for their devices, another thread may move data, so that polling shows nothing. A wait for a
    device that ended shows progress of all ranks that it waited for. One rank alone may run kernels
    of its own while the others wait, so most ranks must have ended one.
    """
    samples, live = Samples(), {record.vitals.rank: record.vitals for record in attempt.live()}
    for batch in sorted(batches, key=lambda each: each.round):
        samples.take(attempt.own(batch), batch.stacks, now - batch.held_s)
    changed = {rank for rank in live if samples.changed_since(rank, float("-inf"))}
    if changed == live.keys():
        return Status.HEALTHY, "every rank changed its position during the snapshot"
    moved = {
        rank
        for rank, vitals in live.items()
        if samples.ran(rank)
        and read_movement(vitals.movement, policy.moving_cpu_cores, waits=True).moves_data
    }
    ended = {rank for rank in live if samples.has_ended_wait(rank)}
    if 2 * len(ended) > len(live):
        return Status.HEALTHY, "most ranks ended a wait for their device during the snapshot"
    if changed | moved | ended == live.keys():
        return Status.HEALTHY, "every rank changed its position or moved data during the snapshot"
    return Status.SUSPECT, "ranks did not change their position during the snapshot"


def _find_caveat(case: Case, policy: Policy) -> str:
    """Return why this job may be healthy; empty if its last step is long ago."""
    stalled = format_duration(case.stalled_for_s)
    if all(rank.beat is None for rank in case.ranks):
        return SHORT_VIEW.format(stalled)
    return YOUNG_STALL.format(stalled) if case.stalled_for_s < policy.no_step_floor_s else ""


def _step_of(fleet: Fleet) -> int | None:
    steps = [job.attempt.step() for job in fleet.jobs.values()]
    return steps[0] if steps and steps[0] >= 0 else None
