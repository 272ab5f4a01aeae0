"""Joins what readers found in files to one case, as agents and snapshots make one.

The rules are those of every other verdict. What files lack is missing evidence: a rank without a
finding is a rank of which it is not known where it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from watchtower.evidence.case import Case, Presence, RankEvidence
from watchtower.policy import Policy
from watchtower.readers.findings import (
    DEFAULT_GROUP,
    CallsFound,
    FileFound,
    WatchdogStuck,
)
from watchtower.wire.bounds import MAX_NAME, MAX_WORLD_SIZE
from watchtower.wire.collectives import (
    CollectiveRecord,
    GroupLog,
    ProcessGroup,
    RankCollectives,
    format_members,
    make_group_log,
    name_group,
)
from watchtower.wire.dumps import KernelWait, RankDump
from watchtower.writing.text import clean


@dataclass(slots=True)
class RankFound:
    """Everything found about one rank."""

    rank: int
    files: list[FileFound] = field(default_factory=list)
    calls: dict[str, CallsFound] = field(default_factory=dict)
    """By group: where it waits."""
    stuck: WatchdogStuck | None = None

    @property
    def has_own_file(self) -> bool:
        """Whether a whole file is its output."""
        return any(file.owner.rank == self.rank for file in self.files)


@dataclass(frozen=True, slots=True)
class Found:
    """All findings of a folder, by rank."""

    ranks: dict[int, RankFound]
    world_size: int
    groups: dict[str, tuple[int, ...]]
    """Members of each group that is known, by its name in the findings."""


def sort_findings(files: Sequence[FileFound]) -> Found:
    """Return the findings by rank. Of several about one call of a rank, the last one counts."""
    ranks: dict[int, RankFound] = {}
    members: dict[str, set[int]] = defaultdict(set)

    def of(rank: int) -> RankFound:
        return ranks.setdefault(rank, RankFound(rank))

    for file in files:
        for rank in {file.owner.rank, *file.ranks} - {-1}:
            of(rank).files.append(file)
        for finding in file.findings:
            rank = finding.owner.rank
            if rank < 0:
                continue
            if isinstance(finding, CallsFound):
                of(rank).calls[finding.group] = finding
                members[finding.group].add(rank)
            else:
                of(rank).stuck = finding
    world_size = min(max(ranks, default=-1) + 1, MAX_WORLD_SIZE)
    if DEFAULT_GROUP in members:
        members[DEFAULT_GROUP] = set(range(world_size))
    return Found(ranks, world_size, {name: tuple(sorted(each)) for name, each in members.items()})


def make_case(job: str, found: Found, policy: Policy | None = None) -> Case:
    """Return the case of these findings."""
    policy = policy or Policy()
    groups = {name: _make_group(name, ranks) for name, ranks in found.groups.items() if ranks}
    logs: dict[str, GroupLog] = {}
    ranks = []
    silent = _find_silent(found)
    for rank in range(found.world_size):
        own = found.ranks.get(rank)
        made = list(_make_logs(own.calls.values(), groups)) if own else []
        if rank in silent:
            made.append(_make_silent_log(found, groups[DEFAULT_GROUP].id))
        logs |= {log.digest: log for log in made}
        ranks.append(_make_rank(rank, made, is_silent=rank in silent))
    named = {log.group for log in logs.values()}
    return Case(
        job=job,
        generation=1,
        world_size=max(1, found.world_size),
        typical_step_s=0.0,
        stalled_for_s=_stalled_for(found),
        settle_s=policy.settle_s,
        moving_cpu_cores=policy.moving_cpu_cores,
        ranks=tuple(ranks),
        groups=tuple(sorted((g for g in groups.values() if g.id in named), key=lambda g: g.id)),
        group_logs=tuple(logs[digest] for digest in sorted(logs)),
    )


MAX_SILENT = 0.25
"""Share of the ranks that may be called silent. If more say nothing, the launcher may have ended
them before their watchdogs spoke."""


def _find_silent(found: Found) -> frozenset[int]:
    """Return the ranks whose log is there and has nothing about a call that the others wait in.

    Each rank has a watchdog of its own. It reports any call that was queued and does not end,
    within a second of the others. One that reports nothing has queued no such call.
    """
    waiting = {rank for rank, own in found.ranks.items() if DEFAULT_GROUP in own.calls}
    silent = {
        rank
        for rank, own in found.ranks.items()
        if not own.calls and own.stuck is None and own.has_own_file
    }
    is_few = len(silent) == 1 or len(silent) <= MAX_SILENT * len(waiting)
    return frozenset(silent) if is_few and len(waiting) > 1 else frozenset()


def _make_silent_log(found: Found, group: str) -> GroupLog:
    """Return the log of a silent rank: it has left the calls before the one that others wait in."""
    calls = (own.calls.get(DEFAULT_GROUP) for own in found.ranks.values())
    first = min(call.waits_in for call in calls if call is not None)
    return make_group_log(
        group=group, called=first - 1, entered=-1, completed=first - 1, records=()
    )


def _stalled_for(found: Found) -> float:
    waited = (call.waited_s for own in found.ranks.values() for call in own.calls.values())
    return max(waited, default=0.0)


def _make_group(name: str, members: Sequence[int]) -> ProcessGroup:
    text = format_members(tuple(members))
    return ProcessGroup(
        id=name_group(text, 0, "nccl"),
        members=text,
        name=clean(name, MAX_NAME),
        library="nccl",
    )


def _make_rank(rank: int, logs: Sequence[GroupLog], *, is_silent: bool) -> RankEvidence:
    if not logs:
        return RankEvidence(rank=rank, presence=Presence.UNREAD)
    dump = RankDump(
        rank=rank,
        pid=0,
        start_time=0,
        kernel=KernelWait(),
        collectives=RankCollectives(logs=tuple(log.digest for log in logs)),
    )
    presence = Presence.QUIET if is_silent else Presence.WROTE
    return RankEvidence(rank=rank, presence=presence, dumps=(dump,))


def _make_logs(calls: Iterable[CallsFound], groups: dict[str, ProcessGroup]) -> Iterable[GroupLog]:
    for call in calls:
        record = CollectiveRecord(
            number=call.waits_in, operation=call.operation, signature=call.signature
        )
        yield make_group_log(
            group=groups[call.group].id,
            called=max(call.waits_in, call.enqueued),
            entered=-1,
            completed=call.waits_in - 1,
            records=(record,) if call.operation else (),
            timeout_s=call.timeout_s,
        )
