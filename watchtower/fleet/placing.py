"""Placing: finds the job of each launch, and the job of a message.

A name in a script that is started twice names two jobs. A job on many nodes has a launcher on each
node, and a restart has new launchers: these are one job. The first line that matches decides:

1. Launches with the same rendezvous are one job: their ranks talk to each other.
2. A launch with a process that is known belongs to the job of this process. After a restart of the
   agent or of the tower this is so whatever the agent calls it: a name that the agent has made of
   the command line may be another one, because the program has changed its title.
3. A launch that contradicts the live ranks of a job for `CONFIRM_S` seconds is not of this job. It
   contradicts them if it has a live process for the same rank, another world size, another job of
   the scheduler, or another run. A launch that has ended when it is first seen does so at once,
   also with another rendezvous: its ranks are not watched.
4. A launch by a process that has started ranks of a job before is of this job.
5. Any other launch is of this job: one more node, or the next attempt.

Reports of two nodes show two moments. An old rank may seem to live beside its successor for a
moment, so a contradiction needs a new report of both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from watchtower.fleet.claims import Claim, precedence
from watchtower.fleet.labels import (
    Digest,
    Labels,
    LaunchClaims,
    Origin,
    is_confirmed,
    may_be_job,
    plain_label,
    read_origin,
)
from watchtower.fleet.nodes import NodeRecord
from watchtower.jobs.keeper import Keeper, PastJob
from watchtower.jobs.ranks import LaunchKey, ProcessKey, RankRecord
from watchtower.service.sharing import Quota
from watchtower.wire.dumps import DumpBatch
from watchtower.wire.report import RankVitals, Report

MAX_CONTRADICTIONS = 4096
"""Launches of which it is stored since when they contradict a job; owners have fair shares. Further
ones are not watched until there is space."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The job of a launch."""

    label: str
    joins: bool = True
    """False: its processes claim ranks of this job that other processes hold."""


class Placing:
    """The launches of all jobs."""

    def __init__(
        self, jobs: Mapping[str, Keeper], past: Mapping[str, PastJob], labels: Labels
    ) -> None:
        self._jobs, self._past, self._labels = jobs, past, labels
        self._recalled: dict[str, set[str]] = {}
        """Labels of the jobs of which the tower's last run knew processes, by node."""
        self._contradictions: dict[LaunchKey, tuple[float, float]] = {}
        """Launches that contradict a job, since when, and when it was last seen."""
        self._shares = Quota()
        """Number of these launches by owner."""

    def recall(self, label: str, processes: Iterable[ProcessKey]) -> None:
        """Record the processes of a job that the tower's last run knew."""
        for node in {key.node for key in processes}:
            self._recalled.setdefault(node, set()).add(label)

    def find_label(self, node: str, name: str, owner: str, launch: str) -> str:
        """Return the label of the job that a message of a node is about.

        `launch`: the id of a launch on this node; empty if the agent sends none.
        """
        joined = self._labels.find_launch(LaunchKey(name, owner, node, launch)) if launch else None
        return joined or self._labels.find(name, owner)

    def find_label_of_dumps(self, batch: DumpBatch) -> str:
        """Return the label of the job of a batch, also if no report of its launch has arrived."""
        key = LaunchKey(batch.job, batch.owner, batch.node, batch.launch)
        label = self._labels.find_launch(key) if batch.launch else None
        if label is None and batch.launch:
            ranks = {
                ProcessKey(batch.node, each.pid, each.start_time): each.rank for each in batch.ranks
            }
            label = self._find_known(key, ranks)
        return label or self._labels.find(batch.job, batch.owner)

    def find_held(
        self, report: Report, node: NodeRecord, previous: NodeRecord
    ) -> Sequence[RankVitals] | None:
        """Return what is reported of the ranks `previous.held`, in that order, if the same
        processes still hold them. Nearly all reports are like that, and nothing is to be decided
        about them.

        None if a process may hold another rank now, or none.
        """
        held, before = previous.held, previous.reporter
        is_same = previous.is_settled and len(held) == len(previous.ranks)
        if not is_same or before.agent_id != report.agent_id:
            return None
        over = node.find_over(report, previous)
        ranks = _without(report.ranks, over) if over else report.ranks
        if len(ranks) != len(held):
            return None
        name, last, records = report.node, None, dict[int, RankRecord]()
        for vitals, (label, record) in zip(ranks, held, strict=True):
            known = record.vitals
            if (
                vitals.pid != known.pid
                or vitals.start_time != known.start_time
                or vitals.rank != known.rank
                or vitals.job != known.job
                or vitals.owner != known.owner
                or vitals.launch != known.launch
                or record.reporter is not before
                or record.key.node != name
            ):
                return None
            if (label, vitals.launch, vitals.job, vitals.owner) != last:
                last = label, vitals.launch, vitals.job, vitals.owner
                job = self._jobs.get(label)
                if job is None or not self._is_settled(name, vitals, label):
                    return None
                records = job.attempt.ranks
            if records.get(vitals.rank) is not record:
                return None
        node.ranks, node.labels, node.held = previous.ranks, previous.labels, held
        node.over, node.is_settled = over, True
        return ranks

    def _is_settled(self, node: str, vitals: RankVitals, label: str) -> bool:
        """Return whether a process of this job is still of it, and that is not to be decided."""
        if not vitals.launch:
            return self._labels.is_live(vitals.job, vitals.owner, label)
        key = LaunchKey(vitals.job, vitals.owner, node, vitals.launch)
        return self._labels.find_launch(key) == label

    def note_labels(self, report: Report, node: NodeRecord) -> None:
        """Store the labels of the jobs in a report, for people. The first labels of a job stay.

        Only an agent that reports a rank of a job may label it: alerts go to the user in them.
        """
        reported = None
        for each in report.jobs:
            label = self.find_label(report.node, each.job, each.owner, each.launch)
            job = self._jobs.get(label)
            if job is None or job.labels is not None:
                continue
            reported = self._find_reported(report, node) if reported is None else reported
            if label in reported:
                job.labels = each

    def _find_reported(self, report: Report, node: NodeRecord) -> Set[str]:
        """Return the labels of the jobs of which the agent of a report holds a rank."""
        found = set()
        for label, rank in node.ranks:
            job = self._jobs.get(label)
            record = job.attempt.ranks.get(rank) if job else None
            if record is not None and record.reporter.agent_id == report.agent_id:
                found.add(label)
        return found

    def place(
        self, claims: Iterable[Claim], report: Report, previous: NodeRecord | None
    ) -> Iterator[tuple[str, Claim, bool]]:
        """Yield the claims of a report with the label of their job, known launches first.

        `previous`: the node's last record.

        The last value is False for processes that claim ranks which other processes of this job
        hold. A launch is placed after the claims before it have been taken. It is placed again if
        one of its own claims has separated it from its job.
        """
        launches = {launch.id: launch for launch in report.launches}
        is_new_agent = previous is not None and previous.reporter.agent_id != report.agent_id
        before = previous.labels if previous is not None and is_new_agent else frozenset[str]()
        groups: dict[LaunchKey, list[Claim]] = {}
        for claim in sorted(claims, key=lambda each: precedence(each.vitals)):
            groups.setdefault(claim.launch, []).append(claim)
        for key in sorted(groups, key=lambda each: self._labels.find_launch(each) is None):
            found, placed = launches.get(key.id), None
            origin = read_origin(found, key.node, report.boot) if found is not None else None
            for claim in groups[key]:
                if origin is not None and (placed is None or self._has_left(origin, placed)):
                    launch = LaunchClaims(key=key, origin=origin, claims=groups[key])
                    placed = self._place(launch, claim.now, before)
                label = placed.label if placed is not None else self._label_of(claim)
                yield label, claim, placed is None or placed.joins
            self._drop_unseen(key, groups[key][0].now)

    def _has_left(self, launch: Origin, placed: Placed) -> bool:
        """Return whether a launch has been separated from the job that it had joined."""
        return placed.joins and self._labels.is_apart(placed.label, launch.party)

    def _place(self, launch: LaunchClaims, now: float, before: Set[str]) -> Placed:
        """Decide which job a launch belongs to, by the table above.

        `before`: labels of the jobs that an earlier agent of the node has reported last.
        """
        key, origin = launch.key, launch.origin
        label = self._labels.find_launch(key)
        if label is not None:
            return Placed(label)
        label = self._labels.find_origin(key, origin.rendezvous)
        label = label or self._find_known(key, launch.processes, origin.party, before)
        if label is not None:
            return self._join_launch(launch, label)
        name, owner = key.name, key.owner
        live = self._labels.list_live(name, owner)
        by_launcher = self._labels.find_origin(key, origin.launcher)
        live.sort(key=lambda each: each != by_launcher)
        for label in live:
            if self._labels.is_apart(label, origin.party):
                continue
            placed = self._place_in(label, launch, now)
            if placed is not None:
                return placed
        if not launch.live:
            return Placed(self._labels.find(name, owner), joins=not live)
        free = self._labels.find_free(name, owner)
        return Placed(live[0], joins=False) if free is None else self._join_launch(launch, free)

    def _place_in(self, label: str, launch: LaunchClaims, now: float) -> Placed | None:
        """Decide whether a launch is of this live job; None if it is of another one."""
        origin_of = self._origin_of(label)
        record = launch.find_contradiction(self._jobs[label].attempt, origin_of)
        if record is None:
            return self._join_launch(launch, label) if launch.live else Placed(label)
        other, vitals = origin_of(record), [each.vitals for each in launch.live]
        is_job = bool(vitals) and other is not None and may_be_job(launch.origin, other, vitals)
        if is_job and is_confirmed(self._contradicted_since(launch.key, now), record, now):
            return None
        return Placed(label, joins=False)

    def _contradicted_since(self, launch: LaunchKey, now: float) -> float:
        """Return since when a launch contradicts a job, and record that it does so now."""
        known = self._contradictions.get(launch)
        since = now if known is None else known[0]
        if known is None:
            if not self._shares.has_room(_sharer(launch), MAX_CONTRADICTIONS):
                return since
            self._shares.add(_sharer(launch), 1)
        self._contradictions[launch] = since, now
        return since

    def _drop_contradiction(self, launch: LaunchKey) -> None:
        if self._contradictions.pop(launch, None) is not None:
            self._shares.add(_sharer(launch), -1)

    def _drop_unseen(self, launch: LaunchKey, now: float) -> None:
        """Forget the contradiction of a launch if its report of now does not show it."""
        _, seen_at = self._contradictions.get(launch, (now, now))
        if seen_at != now:
            self._drop_contradiction(launch)

    def _join_launch(self, launch: LaunchClaims, label: str) -> Placed:
        """Record that a launch is of this job."""
        self._drop_contradiction(launch.key)
        job = self._jobs.get(label)
        self._labels.join(label, launch.key, launch.origin, len(job.attempt.ranks) if job else 0)
        for other in self._labels.list_live(launch.key.name, launch.key.owner):
            for key in launch.processes:
                self._jobs[other].attempt.rivals.pop(key, None)
        return Placed(label)

    def _origin_of(self, label: str) -> Callable[[RankRecord], Origin | None]:
        """Return what gives the origin of a rank of a job; None for a rank without a launch."""
        return lambda record: self._labels.origin_of(label, record.launch)

    def _find_known(
        self,
        launch: LaunchKey,
        ranks: Mapping[ProcessKey, int],
        party: Digest = b"",
        before: Iterable[str] = (),
    ) -> str | None:
        """Return the label of the job with one of these processes; None if they are not known.

        A party that was separated from a job is not of it, whatever is known of its processes.
        """
        labels = dict.fromkeys(
            [
                plain_label(launch.name),
                *self._labels.list_live(launch.name, launch.owner),
                *self._labels.list_all(launch.name, launch.owner),
                *sorted({*before, *self._recalled.get(launch.node, ())}),
            ]
        )
        return self._find_with(
            (label for label in labels if not self._labels.is_apart(label, party)), ranks
        )

    def _find_with(self, labels: Iterable[str], ranks: Mapping[ProcessKey, int]) -> str | None:
        """Return the first of these labels whose job has or had one of these processes."""
        for label in labels:
            job, past = self._jobs.get(label), self._past.get(label)
            if (past is not None and not past.last.processes.isdisjoint(ranks)) or (
                job is not None and job.has_any(ranks)
            ):
                return label
        return None

    def separate(self, job: Keeper, record: RankRecord, claim: Claim) -> set[int]:
        """Separate two launches of a job whose processes have had one rank for some seconds.

        They were taken for parts of one job, because their first ranks did not contradict each
        other. The one that joined later leaves. Returns the ranks of this job that it has.
        """
        one, other = record.launch, claim.launch
        first, second = (self._labels.origin_of(job.name, each) for each in (one, other))
        if first is None or second is None or first.party == second.party:
            return set()
        goes, stays, leaving = second, first, claim.vitals
        if self._labels.joined_first(job.name, one, other) == other:
            goes, stays, leaving = first, second, record.vitals
        if not may_be_job(goes, stays, [leaving]):
            return set()
        if not is_confirmed(self._contradicted_since(other, claim.now), record, claim.now):
            return set()
        self._drop_contradiction(other)
        parted = set(self._labels.part(job.name, goes.party))
        return {rank for rank, each in job.attempt.ranks.items() if each.launch in parted}

    def _label_of(self, claim: Claim) -> str:
        """Return the label of the job of a process whose agent sends no launches.

        A process stays in its job even if a restarted agent reports a different owner or none.
        """
        vitals = claim.vitals
        live = self._labels.list_live(vitals.job, vitals.owner)
        known = self._find_with([plain_label(vitals.job), *live], {claim.key: vitals.rank})
        return known or self._labels.find(vitals.job, vitals.owner)

    def drop_old(self, now: float, after_s: float) -> None:
        """Forget the contradictions of launches that are not reported any more."""
        for key, (_, seen_at) in list(self._contradictions.items()):
            if now - seen_at > after_s:
                self._drop_contradiction(key)


def _without(ranks: Iterable[RankVitals], over: Set[tuple[int, int]]) -> Sequence[RankVitals]:
    return [each for each in ranks if (each.pid, each.start_time) not in over]


def _sharer(launch: LaunchKey) -> str:
    """Return the key of the fair shares, as `Keeper.sharer`."""
    return launch.owner or launch.name
