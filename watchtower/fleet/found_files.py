"""Sorts what readers found in files by rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from watchtower.fleet.found_runs import keep_last_run
from watchtower.jobs.attempt import list_missing
from watchtower.readers.findings import (
    DEFAULT_GROUP,
    NO_OWNER,
    UNKNOWN,
    BarrierFound,
    CallsFound,
    EndFound,
    ErrorFound,
    FileFound,
    Finding,
    Known,
    ObservedFound,
    Owner,
    Process,
    RecordsFound,
    SetUpFound,
    StacksFound,
    StepFound,
    WatchdogStuck,
    WorldFound,
)
from watchtower.readers.nccl_lines import NCCL_WARNING
from watchtower.wire.bounds import MAX_WORLD_SIZE

MAX_STACKS = 2
"""Dumps of a rank in one case, as of agents."""


MAX_WARNINGS = 8
"""Warnings of a rank that are read, and lines about errors: the first one of a burst is the reason,
the others follow."""


@dataclass(slots=True)
class RankFound:
    """Everything found about one rank."""

    rank: int
    files: list[FileFound] = field(default_factory=list)
    calls: dict[str, CallsFound] = field(default_factory=dict)
    """By group: where its watchdog says that it waits."""
    records: RecordsFound | None = None
    """The newest dump of its flight recorder."""
    stacks: list[StacksFound] = field(default_factory=list)
    """In the order of their files."""
    stuck: WatchdogStuck | None = None
    barrier: BarrierFound | None = None
    set_ups: dict[str, SetUpFound] = field(default_factory=dict)
    """By communicator: whether its set-up is complete."""
    process: Process | None = None
    error: ErrorFound | None = None
    """The last exception that it printed."""
    warnings: list[ErrorFound] = field(default_factory=list)
    """What NCCL warned of, in the order of its lines."""
    error_lines: list[ErrorFound] = field(default_factory=list)
    """Lines about errors, in their order."""
    end: EndFound | None = None
    step: int = UNKNOWN
    """The last one that it wrote."""
    observed: list[ObservedFound] = field(default_factory=list)
    """What files of its node show of its process."""

    @property
    def has_output(self) -> bool:
        """Whether what it wrote is in the files: in one of its own, or in lines with its prefix."""
        return any(self.rank in (file.owner.rank, *file.ranks) for file in self.files)

    @property
    def last_line(self) -> str:
        """The last line of its own output; empty if no file is its own."""
        own = [file.last_line for file in self.files if file.owner.rank == self.rank]
        return next(filter(None, reversed(own)), "")

    @property
    def pids(self) -> set[int]:
        """Its process, as its files name it: that of its last run."""
        known = [self.end and self.end.pid, self.process and self.process.pid]
        return {pid for pid in (*known, *(each.pid for each in self.stacks)) if pid and pid > 0}

    @property
    def node(self) -> str:
        """The node of its process; empty if no file has it."""
        named = self.end.node if self.end else ""
        return named or (self.process.node if self.process else "")

    @property
    def has_waited(self) -> bool:
        """Whether a finding shows that it waited for other ranks."""
        waits = self.calls or self.records or self.set_ups or self.barrier or self.stuck
        return bool(waits)

    def take(self, finding: Finding) -> None:
        """Add a finding. Of several about the same, the newest counts; in a file, the last."""
        if isinstance(finding, CallsFound):
            before = self.calls.get(finding.group)
            self.calls[finding.group] = finding.joined_with(before) if before else finding
        elif isinstance(finding, RecordsFound):
            if self.records is None or self.records.made_ns <= finding.made_ns:
                self.records = finding
        elif isinstance(finding, StacksFound):
            self.stacks = [*self.stacks, finding][-MAX_STACKS:]
        else:
            self._take_line(finding)

    def _take_line(self, finding: Finding) -> None:
        if isinstance(finding, WatchdogStuck):
            self.stuck = finding
        elif isinstance(finding, BarrierFound):
            self.barrier = self.barrier if self.barrier and self.barrier.missing else finding
        elif isinstance(finding, SetUpFound):
            self._take_set_up(finding)
        elif isinstance(finding, ErrorFound):
            self._take_error(finding)
        elif isinstance(finding, EndFound):
            self.end = finding
        elif isinstance(finding, StepFound):
            self.step = max(self.step, finding.step)

    def _take_set_up(self, finding: SetUpFound) -> None:
        before = self.set_ups.get(finding.group)
        self.process = finding.process or self.process
        if before is None or not before.is_complete:
            self.set_ups[finding.group] = finding

    def _take_error(self, finding: ErrorFound) -> None:
        if finding.is_line:
            self.error_lines = [*self.error_lines, finding][-MAX_WARNINGS:]
        elif finding.type == NCCL_WARNING:
            self.warnings = [*self.warnings, finding][-MAX_WARNINGS:]
        else:
            self.error = finding


@dataclass(frozen=True, slots=True)
class Found:
    """All findings of a folder, by rank."""

    ranks: dict[int, RankFound]
    files: Sequence[FileFound]
    world_size: int
    """The largest rank that any file names, and 1; more if a group is known to have more."""
    proven_size: int
    """The same without a number of ranks that only one rank wrote: it may be of another job."""

    @property
    def has_timed_out(self) -> bool:
        """Whether a rank has waited until its own library gave up: then the job did hang."""
        calls = (call for own in self.ranks.values() for call in own.calls.values())
        return any(call.waited_s > 0 for call in calls) or any(
            own.stuck for own in self.ranks.values()
        )

    @property
    def missing_in_barrier(self) -> frozenset[int]:
        """Ranks of which rank 0 wrote that they did not come to a monitored barrier, without those
        that wrote that they did."""
        named = {rank for own in self.ranks.values() if own.barrier for rank in own.barrier.missing}
        return frozenset(rank for rank in named if not self._came(rank))

    @property
    def listed(self) -> tuple[int, ...]:
        """The ranks that files name, and the lowest of the others. A number of ranks in a line may
        be wrong, and must not cost time."""
        named = {*self.ranks, *self.missing_in_barrier}
        return tuple(sorted({*named, *list_missing(self.world_size, named)}))

    def waits_by_group(self) -> dict[str, list[int]]:
        """Return the numbers of the calls in which ranks wait, sorted, by group."""
        numbers: dict[str, list[int]] = {}
        for own in self.ranks.values():
            for group, call in own.calls.items():
                numbers.setdefault(group, []).append(call.waits_in)
        return {group: sorted(each) for group, each in numbers.items()}

    def _came(self, rank: int) -> bool:
        own = self.ranks.get(rank)
        return own is not None and own.barrier is not None

    @property
    def is_shared(self) -> bool:
        """Whether one file has findings of most ranks: it would have those of the others, too."""
        counts = (len({each.owner.rank for each in file.findings} - {-1}) for file in self.files)
        return any(count > 1 and 2 * count > self.world_size for count in counts)

    def members_of(self, group: str) -> tuple[int, ...]:
        """Return the ranks of a group: all of the default group, else those that name it."""
        callers = {rank: own.calls[group] for rank, own in self.ranks.items() if group in own.calls}
        sizes = {call.group_size for call in callers.values()}
        if group == DEFAULT_GROUP or self.world_size in sizes:
            return tuple(range(self.world_size))
        return tuple(sorted(callers))


def sort_findings(files: Sequence[FileFound]) -> Found:
    """Return the findings by rank."""
    files = keep_last_run(_number_processes(_name_processes(files)))
    ranks: dict[int, RankFound] = {}
    for file in files:
        for rank in sorted({file.owner.rank, *file.ranks} - {-1}):
            ranks.setdefault(rank, RankFound(rank)).files.append(file)
        for finding in file.findings:
            rank = finding.owner.rank
            if rank >= 0:
                ranks.setdefault(rank, RankFound(rank)).take(finding)
    _add_observed(ranks.values(), files)
    missing = {r for own in ranks.values() if own.barrier for r in own.barrier.missing}
    largest = max((*ranks, *missing, *_members_in_records(ranks.values())), default=-1)
    findings = [each for file in files for each in file.findings]
    claims = {(e.size, e.owner.rank) for e in findings if isinstance(e, WorldFound)}
    by = Counter(size for size, _ in claims)
    proven = max(
        [
            largest + 1,
            *(each.size for each in findings if isinstance(each, SetUpFound)),
            *(size for size, count in by.items() if count > 1),
        ]
    )
    size = max([proven, *by])
    return Found(ranks, files, min(size, MAX_WORLD_SIZE), min(proven, MAX_WORLD_SIZE))


MAX_OBSERVED = 16
"""Observations of one process: a GPU that fails writes a line a second."""


def _add_observed(ranks: Iterable[RankFound], files: Sequence[FileFound]) -> None:
    """Add to each rank what the files of its node show of its process. A number of a process alone
    is not enough if both files name their nodes, and these differ."""
    by_pid: dict[int, list[ObservedFound]] = {}
    for each in (found for file in files for found in file.findings):
        if isinstance(each, ObservedFound) and each.observation.pid:
            by_pid.setdefault(each.observation.pid, []).append(each)
    if not by_pid:
        return
    for own in ranks:
        own.observed = [
            each
            for pid in sorted(own.pids)
            for each in by_pid.get(pid, ())
            if not each.node or not own.node or _is_same_node(each.node, own.node)
        ][-MAX_OBSERVED:]


def _is_same_node(name: str, other: str) -> bool:
    """Return whether two names are of one node: one may have its domain."""
    return name.partition(".")[0] == other.partition(".")[0]


def _name_processes(files: Sequence[FileFound]) -> Sequence[FileFound]:
    """Return the files with the ranks that lines of NCCL show. In the largest communicator, the
    rank is the global one, and other lines of that process have none."""
    findings = [each for file in files for each in file.findings]
    set_ups = [each for each in findings if isinstance(each, SetUpFound)]
    world = max((each.size for each in set_ups), default=0)
    ranks = {each.process: each.group_rank for each in set_ups if each.size == world}

    def name(finding: Finding) -> Finding:
        if not isinstance(finding, (SetUpFound, ErrorFound)) or finding.owner.rank >= 0:
            return finding
        rank = ranks.get(finding.process, -1) if finding.process else -1
        return replace(finding, owner=Owner(rank, Known.CONTENT)) if rank >= 0 else finding

    return [_own(replace(file, findings=tuple(map(name, file.findings)))) for file in files]


def _own(file: FileFound) -> FileFound:
    """Return a file with the rank that it is of, if lines of NCCL show it, and one only."""
    ranks = {each.owner.rank for each in file.findings} - {-1}
    is_set_up = any(isinstance(each, SetUpFound) for each in file.findings)
    if file.owner != NO_OWNER or file.ranks or len(ranks) != 1 or not is_set_up:
        return file
    return replace(file, owner=Owner(ranks.pop(), Known.CONTENT))


def _number_processes(files: Sequence[FileFound]) -> Sequence[FileFound]:
    """Return the files, their processes numbered by pid if no finding has a rank.

    One text of `py-spy` of all processes of a node is what many people have.
    """
    findings = [each for file in files for each in file.findings]
    if any(each.owner.rank >= 0 for each in findings) or any(file.ranks for file in files):
        return files
    pids = sorted({each.pid for each in findings if isinstance(each, StacksFound) and each.pid})
    ranks = {pid: Owner(rank, Known.COUNTED) for rank, pid in enumerate(pids)}
    return [
        replace(
            file,
            findings=tuple(
                replace(each, owner=ranks[each.pid])
                if isinstance(each, StacksFound) and each.pid
                else each
                for each in file.findings
            ),
        )
        for file in files
    ]


def _members_in_records(ranks: Iterable[RankFound]) -> Iterator[int]:
    for own in ranks:
        if own.records is not None:
            yield from (each[-1] for each in own.records.records.members.values())
