"""The case: one immutable snapshot of all evidence about one job at one moment.

`diagnose(case)` needs nothing else. Goldens, the store, the export bundle and replay all use this
format, so that every verdict can be computed again from the stored case.

The diagnosing process receives a case in parts (`CaseParts`). The tower does not decode dumps: it
stores the bodies as it received them, and records which body contains the dumps of which rank.
Stacks, process groups and collective logs are stored once for all ranks that share them. Each
digest is computed again, and content with a wrong digest is dropped. Otherwise a node could replace
the stacks of ranks on another node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple, TypedDict

from watchtower.wire.collectives import GroupLog, ProcessGroup, change_group_log, name_group
from watchtower.wire.dumps import DumpBatch, RankDump
from watchtower.wire.observations import Observation
from watchtower.wire.report import (
    AgentGaps,
    Beat,
    Ending,
    Movement,
    ProcessState,
    WaitingLauncher,
)
from watchtower.wire.stacks import Stack, make_stack

CASE_SCHEMA = 1
"""Version of the format. Increase it when an older reader would misunderstand a newer case."""

MIN_SAMPLES = 4
"""Fewer samples of a rank do not show how much it waits for others."""


class Presence(Enum):
    """State of a rank's process, as its node's agent reports it."""

    LIVE = "live"
    ENDED = "ended"
    MISSING = "missing"
    """Expected because of the world size, but no agent has reported it."""
    SILENT = "silent"
    """Its node's agent has stopped reporting, so its present state is not known."""
    UNREPORTED = "unreported"
    """Its node's agent reports without it, so its present state is not known."""

    WROTE = "wrote"
    """Files that it wrote show where it was: logs, records, stacks. No agent has seen it."""
    QUIET = "quiet"
    """Its output is there, and has nothing about a call in which the others waited. That it has not
    come to this call is inferred."""
    UNREAD = "unread"
    """A rank of a job of which there are files, and none shows where it is."""

    @property
    def is_out_of_sight(self) -> bool:
        """Whether the process may be alive, but its present state is not known."""
        return self in (Presence.SILENT, Presence.UNREPORTED, Presence.UNREAD)


OF_FILES = (Presence.WROTE, Presence.QUIET, Presence.UNREAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEvidence:
    """All evidence about one rank at the moment of the case."""

    rank: int
    presence: Presence
    node: str = ""
    """Empty for a missing rank."""
    pid: int | None = None
    local_rank: int | None = None
    """As the launcher set it. It is not a measured GPU index."""
    role: str = ""
    """As in `RankVitals`."""
    beat: Beat | None = None
    """Its ages are those at the moment of the case. None without a heartbeat page."""
    state: ProcessState = ProcessState.OTHER
    wchan: str = ""
    movement: Movement = Movement()
    ended: Ending | None = None
    dumps: tuple[RankDump, ...] = ()
    """Dumps of the current stall only: at most the last two, oldest first."""
    looks: int = 0
    """`samples`, under its name in stored cases and in exports."""
    waits: int = 0
    """Number of these samples in which the rank waited for other ranks."""
    rivals: tuple[str, ...] = ()
    """Other processes that claim the same rank, as "node pid"."""

    @property
    def samples(self) -> int:
        """Number of samples since the steps became slower; 0 if the job is not slow."""
        return self.looks

    def with_dumps(self, dumps: tuple[RankDump, ...]) -> RankEvidence:
        """Return this evidence with these dumps."""
        # `dataclasses.replace` takes 1.6 times as long, and a job has thousands of ranks.
        return RankEvidence(
            rank=self.rank,
            presence=self.presence,
            node=self.node,
            pid=self.pid,
            local_rank=self.local_rank,
            role=self.role,
            beat=self.beat,
            state=self.state,
            wchan=self.wchan,
            movement=self.movement,
            ended=self.ended,
            dumps=dumps,
            looks=self.looks,
            waits=self.waits,
            rivals=self.rivals,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvidence:
    """One node of the job."""

    node: str
    silent_for_s: float
    interval_s: float = 1.0
    """Seconds between two reports of its agent."""
    limits: AgentGaps = AgentGaps()
    unwatched: tuple[str, ...] = ()
    """Sentences about its processes that may be ranks of the job and are not watched, if the job
    lacks ranks."""
    observations: tuple[Observation, ...] = ()
    """Observations of its collectors, with their ages at the moment of the case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherEvidence:
    """A launcher that has no ranks, on one node."""

    node: str
    launcher: WaitingLauncher
    """Its age is that at the moment of the case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceHolder:
    """Another job that has not all of its nodes, and holds a place that this job lacks. This job
    holds what that one lacks, or what a third one does that is in the same cycle."""

    job: str
    nodes: tuple[str, ...]
    """Those that it holds."""
    lacks: int
    """How many nodes it lacks."""
    endpoint: str = ""
    """Where its launchers meet; empty if it has ranks, or if that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Evidence about one attempt of one job."""

    job: str
    generation: int
    world_size: int
    """Number of ranks that the job reports; if it reports none, the number of ranks seen."""
    typical_step_s: float
    """p95 of plain steps in the current phase, 0 until learned."""
    stalled_for_s: float
    """Seconds since the last step of the rank that stopped first. While the job is starting:
    seconds since the first rank was seen."""
    settle_s: float
    """Deaths within this many seconds of each other are ordered by kind, not by time."""
    moving_cpu_cores: float
    """CPU use (cores, whole process tree) from which a rank counts as moving."""
    ranks: tuple[RankEvidence, ...]
    """One entry per rank, in ascending order. If many ranks are missing, only the lowest ones."""
    nodes: tuple[NodeEvidence, ...] = ()
    stacks: tuple[Stack, ...] = ()
    """Every stack whose digest is in a dump in `ranks`."""
    groups: tuple[ProcessGroup, ...] = ()
    """Process groups of the job that have a log in `group_logs`."""
    group_logs: tuple[GroupLog, ...] = ()
    """Every log whose digest is in a dump in `ranks`."""
    slowdown: float = 1.0
    """Length of a step now, as a multiple of its usual length. Above 1, the job is slow and not
    stalled."""
    launchers: tuple[LauncherEvidence, ...] = ()
    """Launchers that wait for other nodes, of a job that has no ranks yet."""
    holders: tuple[PlaceHolder, ...] = ()
    """Other half-started jobs, if they and this job hold each other's places."""
    schema: int = CASE_SCHEMA

    @property
    def of_files(self) -> bool:
        """Whether it is made of files that people had, and not of what agents reported."""
        return any(rank.presence in OF_FILES for rank in self.ranks)


@dataclass(slots=True)
class DumpContents:
    """Stacks and logs by digest, groups by id."""

    stacks: dict[str, Stack] = field(default_factory=dict)
    groups: dict[str, ProcessGroup] = field(default_factory=dict)
    group_logs: dict[str, GroupLog] = field(default_factory=dict)

    def add(self, batch: DumpBatch, dumps: Iterable[RankDump]) -> None:
        """Add the contents of a batch that these dumps refer to; skip all others."""
        dumps = list(dumps)
        named = {digest for dump in dumps for digest in digests_of(dump)}
        for stack in batch.stacks:
            if stack.digest not in named or stack.digest in self.stacks:
                continue
            if make_stack(stack.frames).digest == stack.digest:
                self.stacks[stack.digest] = stack
        named = {digest for dump in dumps for digest in logs_of(dump)}
        # Each group is checked once, not once per log: its members may be 100 kB of text, and
        # there may be thousands of logs.
        groups = {group.id: group for group in batch.groups if self._is_right(group)}
        for log in batch.group_logs:
            if log.digest in named and log.digest not in self.group_logs and log.group in groups:
                self._keep_log(log, groups[log.group])

    def _is_right(self, group: ProcessGroup) -> bool:
        if group == self.groups.get(group.id):
            return True
        return group.id == name_group(group.members, group.order, group.library)

    def _keep_log(self, log: GroupLog, group: ProcessGroup) -> None:
        if change_group_log(log).digest != log.digest:
            return
        self.group_logs[log.digest] = log
        self.groups.setdefault(group.id, group)


def digests_of(dump: RankDump) -> Iterator[str]:
    """Yield the digest of every stack of a dump, including those of its child processes."""
    for threads in (dump.threads, *(child.threads for child in dump.children)):
        for thread in threads:
            yield thread.digest


def logs_of(dump: RankDump) -> tuple[str, ...]:
    """Return the digests of all collective logs of a dump."""
    return dump.collectives.logs if dump.collectives else ()


class DumpPlace(NamedTuple):
    """The place of one dump: a process of a rank, and the body that contains its dump."""

    rank: int
    pid: int
    start_time: int
    body: int
    """Index of the body, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseParts:
    """A case without its dumps, and the places of these dumps."""

    case: Case
    dumps: tuple[DumpPlace, ...]
    """The dumps of each rank are in ascending order of time."""


def join_case(parts: CaseParts, batches: Sequence[DumpBatch], earlier: Case | None = None) -> Case:
    """Return the case with its dumps. `batches` are the decoded bodies.

    `earlier` is the case of the same stall from before the tower was restarted.
    """
    case, contents = parts.case, DumpContents()
    dumps = _find_dumps(parts.dumps, batches)
    for number, batch in enumerate(batches):
        contents.add(batch, dumps.by_body.get(number, ()))
    ranks = tuple(
        item.with_dumps(tuple(dumps.by_rank[item.rank])) if item.rank in dumps.by_rank else item
        for item in case.ranks
    )
    case = replace(case, ranks=ranks, **_contents_of(ranks, contents))
    return case if earlier is None else _carry_over(case, earlier)


class _Found(NamedTuple):
    by_rank: dict[int, list[RankDump]]
    by_body: dict[int, list[RankDump]]


def _find_dumps(places: Sequence[DumpPlace], batches: Sequence[DumpBatch]) -> _Found:
    held = [
        {(dump.rank, dump.pid, dump.start_time): dump for dump in batch.ranks} for batch in batches
    ]
    found = _Found({}, {})
    for place in places:
        dump = held[place.body].get((place.rank, place.pid, place.start_time))
        if dump is not None:
            found.by_rank.setdefault(place.rank, []).append(dump)
            found.by_body.setdefault(place.body, []).append(dump)
    return found


def _carry_over(case: Case, earlier: Case) -> Case:
    """Add ranks that are no longer reported, as they were in an earlier case of the same stall.

    If tower and agent were restarted after a rank died, no later report contains that rank.
    """
    elapsed_s = max(0.0, case.stalled_for_s - earlier.stalled_for_s)
    known = {r.rank: r for r in earlier.ranks if r.presence is not Presence.MISSING}
    ranks = tuple(
        _age_evidence(known[r.rank], elapsed_s)
        if r.presence is Presence.MISSING and r.rank in known
        else r
        for r in case.ranks
    )
    both = DumpContents(
        stacks={each.digest: each for each in (*earlier.stacks, *case.stacks)},
        groups={each.id: each for each in (*earlier.groups, *case.groups)},
        group_logs={each.digest: each for each in (*earlier.group_logs, *case.group_logs)},
    )
    return replace(case, ranks=ranks, **_contents_of(ranks, both))


def _age_evidence(known: RankEvidence, elapsed_s: float) -> RankEvidence:
    ended = known.ended
    return replace(
        known,
        presence=Presence.ENDED if ended else Presence.SILENT,
        beat=age_beat(known.beat, elapsed_s),
        ended=replace(ended, age_s=ended.age_s + elapsed_s) if ended else None,
    )


def age_beat(beat: Beat | None, elapsed_s: float) -> Beat | None:
    """Return the beat with its ages increased by `elapsed_s` seconds; None if there is no beat."""
    if beat is None:
        return None
    elapsed_s = max(0.0, elapsed_s)
    # `dataclasses.replace` takes twice as long, and a job has thousands of ranks.
    return Beat(
        step=beat.step,
        age_s=beat.age_s + elapsed_s,
        phase=beat.phase,
        phase_age_s=beat.phase_age_s + elapsed_s if beat.phase else 0.0,
        advanced=beat.advanced,
        interval_s=beat.interval_s,
        loss_is_bad=beat.loss_is_bad,
        exception_type=beat.exception_type,
        exception_text=beat.exception_text,
    )


class _Contents(TypedDict):
    stacks: tuple[Stack, ...]
    groups: tuple[ProcessGroup, ...]
    group_logs: tuple[GroupLog, ...]


def _contents_of(ranks: tuple[RankEvidence, ...], contents: DumpContents) -> _Contents:
    """Return the stacks, groups and logs that the dumps of these ranks refer to.

    They are sorted by digest or id, so that the same dumps always give the same case.
    """
    dumps = [dump for rank in ranks for dump in rank.dumps]
    named = {digest for dump in dumps for digest in digests_of(dump)}
    logs = {digest for dump in dumps for digest in logs_of(dump)} & contents.group_logs.keys()
    groups = {contents.group_logs[digest].group for digest in logs} & contents.groups.keys()
    return _Contents(
        stacks=tuple(contents.stacks[d] for d in sorted(named & contents.stacks.keys())),
        groups=tuple(contents.groups[name] for name in sorted(groups)),
        group_logs=tuple(contents.group_logs[digest] for digest in sorted(logs)),
    )
