"""Collective logs of a case: which rank has called and entered what, in which group.

Text and numbers come from training processes. Whatever does not fit together (a group whose members
cannot be read, a rank that is not a member of its own group) is left out, never believed.

The client counts sends and receives. A call that blocks is done when the message is there. A queued
call is done at once, and the message may never come. But no message arrives before it is sent. So
the count of the sender shows which receive the device waits in.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from watchtower.evidence.case import Case
from watchtower.evidence.collective_log import CallLog, advances, last_with_logs
from watchtower.wire.collectives import PeerTransfers, ProcessGroup, format_members, parse_members
from watchtower.wire.dumps import RankDump

MEMBERS_PER_RANK = 64
"""Members of all groups together, for each rank of the job. Parallel layouts have four to eight,
and the group of all ranks adds one for each."""

LEAST_MEMBERS = 65_536
"""... which small jobs may have in any case."""

_NUMBERS = re.compile(r"[\d.]+")


@dataclass(frozen=True, slots=True)
class Group:
    """A process group, its members read."""

    id: str
    members: tuple[int, ...]
    name: str
    order: int
    library: str = ""
    shape: str = ""
    """How its members lie, where groups of its name and size share ranks: a name that is a number
    does not show the dimension of a group. Empty where the name shows it."""


@dataclass(frozen=True, slots=True)
class CollectiveLogs:
    """The newest collective logs of every rank that has some."""

    groups: Mapping[str, Group] = field(default_factory=dict)
    by_digest: Mapping[str, CallLog] = field(default_factory=dict)
    """Every log: ranks that have called the same share one."""
    of_rank: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Digests of the logs of each rank whose recorder answered; empty before its first call."""
    in_group: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    """By group and digest of a log: the ranks that have this log."""
    transfers: Mapping[int, tuple[PeerTransfers, ...]] = field(default_factory=dict)
    oldest_open: Mapping[int, str] = field(default_factory=dict)
    """By rank, the id of the group whose open call is the oldest of its open calls, if known."""
    queued: frozenset[int] = frozenset()
    """Ranks whose sends and receives were done when they were queued (see `limit_to_sent`)."""
    advancing: frozenset[int] = frozenset()
    """Ranks whose logs changed between their last two dumps."""

    def logs_of(self, rank: int) -> Iterator[CallLog]:
        """Yield the logs of a rank, one for each group it has used."""
        return (self.by_digest[digest] for digest in self.of_rank.get(rank, ()))

    def log_of(self, rank: int, group: str) -> CallLog | None:
        """Return the log of a rank in one group; null without one."""
        return next((log for log in self.logs_of(rank) if log.group == group), None)

    def find_reached(self, group: str) -> int:
        """Return the number of the last call of a group that all ranks with a log have made."""
        return min(self.by_digest[digest].called for digest in self.in_group[group])

    def is_queued(self, rank: int, group: str) -> bool:
        """Return whether a rank's open call in this group is behind one in another group."""
        return self.oldest_open.get(rank, group) != group

    def transfers_with(self, rank: int, peer: int) -> PeerTransfers | None:
        """Return the sends and receives of a rank with a peer; null without any."""
        return next((row for row in self.transfers.get(rank, ()) if row.peer == peer), None)


def read_collective_logs(case: Case) -> CollectiveLogs | None:
    """Read the logs of a case; null if no rank has any."""
    dumps = {item.rank: dump for item in case.ranks if (dump := last_with_logs(item.dumps))}
    if not dumps:
        return None
    logs = {log.digest: CallLog(log) for log in case.group_logs}
    claimed = {rank: _pick_logs(dump, logs) for rank, dump in dumps.items()}
    uses = Counter(group for own in claimed.values() for group in own)
    groups = _read_groups(case, uses)
    of_rank: dict[int, tuple[str, ...]] = {}
    in_group: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    members = {name: frozenset(group.members) for name, group in groups.items()}
    for rank, own in claimed.items():
        known = {name: digest for name, digest in own.items() if rank in members.get(name, ())}
        of_rank[rank] = tuple(known.values())
        for name, digest in known.items():
            in_group[name][digest].append(rank)
    return CollectiveLogs(
        groups=groups,
        by_digest={digest: log for digest, log in logs.items() if log.group in groups},
        of_rank=of_rank,
        in_group={
            name: {digest: tuple(ranks) for digest, ranks in by_log.items()}
            for name, by_log in in_group.items()
        },
        transfers={
            rank: dump.collectives.peers for rank, dump in dumps.items() if dump.collectives
        },
        oldest_open={
            rank: log.group
            for rank, dump in dumps.items()
            if dump.collectives
            and (log := logs.get(dump.collectives.oldest_open))
            and log.digest in of_rank[rank]
        },
        advancing=frozenset(item.rank for item in case.ranks if advances(item.dumps)),
    )


def find_own_timeout(logs: CollectiveLogs | None) -> float | None:
    """Return the shortest timeout in seconds with which the job itself gives up; None if unknown.

    It is that of a collective which is not complete. On NCCL, torch's watchdog ends the process. On
    gloo, the call raises an error. The clock of the library starts with the call, which is about
    when the stall began.
    """
    if logs is None:
        return None
    known = [log.timeout_s for log in logs.by_digest.values() if log.timeout_s > 0 and log.may_wait]
    return min(known, default=None)


def _pick_logs(dump: RankDump, logs: Mapping[str, CallLog]) -> dict[str, str]:
    """Return the digest of one log for each group of a rank: the one with the highest number."""
    assert dump.collectives is not None
    picked: dict[str, str] = {}
    for digest in dump.collectives.logs:
        log = logs.get(digest)
        if log is None:
            continue
        other = logs.get(picked.get(log.group, ""))
        if other is None or other.called < log.called:
            picked[log.group] = digest
    return picked


def _read_groups(case: Case, uses: Mapping[str, int]) -> dict[str, Group]:
    """Read the groups that ranks have logs of, those with the most logs first, within the budget.

    A few characters name hundreds of thousands of ranks. A group is left out if it has members
    beyond the job, or if the budget is used up.
    """
    size = max(case.world_size, len(case.ranks))
    budget = max(MEMBERS_PER_RANK * size, LEAST_MEMBERS)
    groups: dict[str, Group] = {}
    by_use = sorted(case.groups, key=lambda group: (-uses.get(group.id, 0), group.id))
    for group in by_use:
        if not uses.get(group.id) or budget <= 0:
            break
        read = _read_group(group, min(size, budget))
        if read is not None and read.members and read.members[-1] < size:
            groups[group.id] = read
            budget -= len(read.members)
    return _add_shapes(groups)


def _add_shapes(groups: Mapping[str, Group]) -> dict[str, Group]:
    """Add a shape to groups that differ in nothing but their members.

    A mesh of 2 x 2 ranks makes "1" of ranks 0-1 and "3" of ranks 0,2: a rank is in one group of
    each dimension, and groups of one dimension are the same but for where they begin.
    """
    alike: dict[tuple[str, int], list[Group]] = defaultdict(list)
    for group in groups.values():
        alike[name_kind(group), len(group.members)].append(group)
    shared = {
        key
        for key, each in alike.items()
        if len({rank for group in each for rank in group.members}) < key[1] * len(each)
    }
    return {
        group.id: replace(group, shape=_shape_of(group))
        if (name_kind(group), len(group.members)) in shared
        else group
        for group in groups.values()
    }


def _shape_of(group: Group) -> str:
    first = group.members[0]
    return f"{format_members(tuple(rank - first for rank in group.members))} {group.order}"


def name_kind(group: Group) -> str:
    """Return the name of a group without its numbers: "tp" of "tp3"."""
    return _NUMBERS.sub("", group.name)


def _read_group(group: ProcessGroup, limit: int) -> Group | None:
    try:
        members = parse_members(group.members, limit)
    except ValueError:
        return None
    return Group(
        id=group.id, members=members, name=group.name, order=group.order, library=group.library
    )


MAX_AHEAD = 32
"""Receives that a host may have queued ahead of the sender. If it has queued far more, its messages
come by another kind of send, which is not counted."""

Transfers = Mapping[int, tuple[PeerTransfers, ...]]
"""By rank, a row for each of its peers."""


def limit_to_sent(transfers: Transfers, queued: Collection[int]) -> Transfers:
    """Count receives of `queued` ranks as done only if their messages were sent.

    `queued`: ranks that wait for their device. If the device waits in a receive, the host may be
    in a send that it cannot queue any more. The device has not come to that send.
    """
    if not queued:
        return transfers
    sent = {
        (rank, row.peer): row.sends_begun
        for rank, rows in transfers.items()
        for row in rows
        if row.sends_begun
    }
    return {
        rank: _limit_sends([_limit(row, sent.get((row.peer, rank), 0)) for row in rows])
        if rank in queued
        else rows
        for rank, rows in transfers.items()
    }


def _limit_sends(rows: Sequence[PeerTransfers]) -> tuple[PeerTransfers, ...]:
    """Count sends that were not queued as not begun, if the device waits in a receive."""
    waits = any(row.receives_begun > row.receives_done for row in rows)
    return tuple(replace(row, sends_begun=row.sends_done) if waits else row for row in rows)


def _limit(row: PeerTransfers, sent: int) -> PeerTransfers:
    is_served = sent > 0 and row.receives_begun - sent <= MAX_AHEAD
    return replace(row, receives_done=min(row.receives_done, sent)) if is_served else row
