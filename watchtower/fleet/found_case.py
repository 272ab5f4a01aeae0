"""Makes a case of what readers found in files, as agents and snapshots make one.

The rules are those of every other verdict. What files lack is missing evidence: a rank without a
finding is a rank of which it is not known where it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from watchtower.evidence.case import Case, NodeEvidence, Presence, RankEvidence
from watchtower.fleet.found_ends import find_endings
from watchtower.fleet.found_files import Found, RankFound, sort_findings
from watchtower.policy import Policy
from watchtower.readers.collective_calls import GLOO, Membership, trim
from watchtower.readers.files import read_bytes
from watchtower.readers.findings import DEFAULT_GROUP, CallsFound, SetUpFound, StacksFound
from watchtower.readers.torch_records import TorchRecords
from watchtower.wire.bounds import MAX_NAME
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
from watchtower.wire.observations import Observation
from watchtower.wire.report import Ending, ProcessState
from watchtower.wire.stacks import Stack
from watchtower.writing.text import clean

MAX_PASTED = 1 << 20
"""Characters of a text that a person pastes: the end of a log of all ranks has 100 kB."""

MAX_PASTED_RANKS = 8192
"""Ranks of such a text. A line can name any number of them, and each one costs time."""

PASTED = "pasted text"

MAX_SILENT = 0.25
"""Share of the waiting ranks that may be silent. If more write nothing, the launcher may have ended
them before their watchdogs could."""

Logs = dict[str, tuple[ProcessGroup, GroupLog]]
"""The logs of one rank, by group id."""


def make_case(job: str, found: Found, policy: Policy | None = None) -> Case:
    """Return the case of these findings."""
    policy = policy or Policy()
    groups, listed = _Groups(found), found.listed
    logs = {rank: _make_logs(own, groups) for rank, own in sorted(found.ranks.items())}
    endings = find_endings(found)
    quiet = _find_silent(found, listed, logs)
    logs |= quiet
    for rank, log in _read_barrier(groups, listed).items():
        logs.setdefault(rank, {}).update(log)
    made = [each for own in logs.values() for each in own.values()]
    stacks = {s.digest: s for own in found.ranks.values() for s in _stacks_of(own)}
    return Case(
        job=job,
        generation=1,
        world_size=max(1, found.world_size),
        typical_step_s=0.0,
        stalled_for_s=_stalled_for(found),
        settle_s=policy.settle_s,
        moving_cpu_cores=policy.moving_cpu_cores,
        ranks=tuple(
            _make_rank(
                found.ranks.get(rank) or RankFound(rank),
                logs.get(rank, {}),
                is_quiet=rank in quiet,
                ended=endings.get(rank),
            )
            for rank in listed
        ),
        nodes=_make_nodes(found),
        stacks=tuple(stacks[digest] for digest in sorted(stacks)),
        groups=tuple(sorted({g.id: g for g, _ in made}.values(), key=lambda group: group.id)),
        group_logs=tuple(
            sorted({log.digest: log for _, log in made}.values(), key=lambda log: log.digest)
        ),
    )


class UnusableTextError(Exception):
    """A pasted text has no verdict; the message says why."""


def read_pasted(text: str) -> tuple[Case, Found]:
    """Return the case of a text that a person pasted. Raises UnusableTextError."""
    raw = text[:MAX_PASTED].encode("utf-8", "replace")
    found = sort_findings([read_bytes(PASTED, raw)])
    if not found.ranks:
        raise UnusableTextError("no evidence of a hang was found in it")
    if len(found.ranks) > MAX_PASTED_RANKS:
        many = f"it names {len(found.ranks)} ranks"
        raise UnusableTextError(f"{many}: put it into a file, and run `watchtower diagnose FILE`")
    return make_case(PASTED, found), found


def _stalled_for(found: Found) -> float:
    waited = (call.waited_s for own in found.ranks.values() for call in own.calls.values())
    return max(waited, default=0.0)


UNNAMED_NODE = "its node"


def _make_nodes(found: Found) -> tuple[NodeEvidence, ...]:
    """Return the nodes whose files show something of a rank's process."""
    nodes: dict[str, list[Observation]] = {}
    for own in found.ranks.values():
        if own.observed:
            seen = (each.observation for each in own.observed)
            nodes.setdefault(own.node or UNNAMED_NODE, []).extend(seen)
    return tuple(
        NodeEvidence(node=clean(name, MAX_NAME), silent_for_s=0.0, observations=tuple(seen))
        for name, seen in sorted(nodes.items())
    )


def _wrote(own: RankFound) -> bool:
    return bool(
        own.calls or own.records or own.set_ups or own.stacks or own.stuck or own.error or own.end
    )


def _stacks_of(own: RankFound) -> Iterator[Stack]:
    return (stack for found in own.stacks for stack in found.threads.stacks)


def _make_rank(own: RankFound, logs: Logs, *, is_quiet: bool, ended: Ending | None) -> RankEvidence:
    if not logs and not own.stacks and ended is None and not own.observed:
        return RankEvidence(rank=own.rank, presence=Presence.UNREAD)
    digests = tuple(log.digest for _, log in logs.values())
    collectives = RankCollectives(logs=digests) if digests else None
    pid = next((found.pid for found in reversed(own.stacks) if found.pid), None)
    bare = RankDump(
        rank=own.rank, pid=pid or 0, start_time=0, kernel=KernelWait(), collectives=collectives
    )
    dumps = tuple(
        replace(bare, threads=found.threads.threads, kernel=KernelWait(state=_state_of(found)))
        for found in own.stacks
    )
    presence = Presence.QUIET if is_quiet else Presence.WROTE
    return RankEvidence(
        rank=own.rank,
        presence=presence if ended is None else Presence.ENDED,
        node=clean(own.node or (UNNAMED_NODE if own.observed else ""), MAX_NAME),
        pid=pid or min(own.pids, default=None),
        dumps=dumps or (bare,) if logs or own.stacks else (),
        ended=ended,
    )


def _state_of(found: StacksFound) -> ProcessState:
    """Return the state of the main thread, which py-spy shows as idle or active."""
    main = next((thread for thread in found.threads.threads if thread.main), None)
    if main is None or not found.is_sampled:
        return ProcessState.OTHER
    return ProcessState.RUNNING if main.active else ProcessState.SLEEPING


# --- collective logs ------------------------------------------------------------------------------


class _Groups:
    """The groups of the findings. Each is made once: a group of all ranks has as many members."""

    def __init__(self, found: Found) -> None:
        self.found = found
        self.has_records = any(each.records is not None for each in found.ranks.values())
        self._made: dict[tuple[str, str], tuple[ProcessGroup, int]] = {}
        self._waits = found.waits_by_group()
        self._unnamed: tuple[Membership, ...] | None = None

    def make(self, name: str, library: str) -> ProcessGroup:
        """Return the group of the ranks that name it."""
        return self._find(name, library, name)[0]

    def is_left(self, call: CallsFound) -> bool:
        """Return whether most members of a group wait in a later call."""
        waits = self._waits.get(call.group, [])
        past = len(waits) - bisect_right(waits, call.waits_in) if call.waits_in >= 0 else 0
        return 2 * past > self._find(call.group, call.library, call.group)[1]

    def of_all(self, name: str, library: str) -> ProcessGroup:
        """Return a group of all ranks."""
        return self._find(name, library, DEFAULT_GROUP)[0]

    @property
    def unnamed(self) -> tuple[Membership, ...]:
        """The groups of recorders that do not know their members."""
        if self._unnamed is None:
            self._unnamed = _groups_of_all(self.found)
        return self._unnamed

    def _find(self, name: str, library: str, members_of: str) -> tuple[ProcessGroup, int]:
        if (made := self._made.get((name, library))) is None:
            members = self.found.members_of(members_of)
            made = _make_group(name, members, library), len(members)
            self._made[name, library] = made
        return made


def _make_logs(own: RankFound, groups: _Groups) -> Logs:
    """Return the logs of a rank. A flight recorder has more than the lines of a watchdog.

    Both write sizes of tensors, and not in the same way: beside dumps, those of lines say nothing.
    """
    logs: Logs = {}
    for written in own.calls.values():
        call = replace(written, signature="") if groups.has_records else written
        group = groups.make(call.group, call.library)
        logs[group.id] = (group, _make_log(group.id, call, is_left=groups.is_left(call)))
    for set_up in own.set_ups.values():
        if set_up.size == groups.found.world_size:
            logs |= _make_set_up_log(set_up, groups)
    if own.records is not None:
        logs |= {pair[0].id: pair for pair in _trim(own.records.records, groups)}
    return logs


def _make_group(name: str, members: Sequence[int], library: str) -> ProcessGroup:
    text = format_members(tuple(members))
    group = name_group(text, 0, library)
    return ProcessGroup(id=group, members=text, name=clean(name, MAX_NAME), library=library)


def _make_log(group: str, call: CallsFound, *, is_left: bool) -> GroupLog:
    """Return the log of a rank in one group.

    `is_left`: most members have left the call that it did not see end. Then it does not wait for
    them there, and has not come to the call in which they wait.
    """
    if call.waits_in < 0:
        number = max(call.completed, 0)
        return make_group_log(group=group, called=number, entered=-1, completed=number, records=())
    record = CollectiveRecord(
        number=call.waits_in, operation=call.operation, signature=call.signature
    )
    return make_group_log(
        group=group,
        called=max(call.waits_in, call.enqueued),
        entered=-1,
        completed=call.waits_in if is_left else call.waits_in - 1,
        unknown=(call.waits_in,) if is_left else (),
        records=(record,) if call.operation else (),
        timeout_s=call.timeout_s,
    )


SET_UP = "communicator set-up"


def _make_set_up_log(set_up: SetUpFound, groups: _Groups) -> Logs:
    """Return a log of one call, the set-up of a communicator of all ranks. No rank completes it
    before all have begun it."""
    name = f"{SET_UP} {set_up.group}".strip()
    group = groups.of_all(name, "nccl set-up")
    done = 1 if set_up.is_complete else 0
    record = CollectiveRecord(number=1, operation=SET_UP)
    log = make_group_log(group=group.id, called=1, entered=1, completed=done, records=(record,))
    return {group.id: (group, log)}


def _trim(records: TorchRecords, groups: _Groups) -> Iterable[tuple[ProcessGroup, GroupLog]]:
    library = records.library or "nccl"
    is_known = library != GLOO and bool(records.members)
    return trim(library, records, () if is_known else groups.unnamed).logs


def _groups_of_all(found: Found) -> tuple[Membership, ...]:
    """Return the groups of recorders that do not know their members, as that of gloo: the ranks
    that have calls of a name, and all ranks for the default group."""
    users: dict[str, list[int]] = {}
    for rank, own in sorted(found.ranks.items()):
        for group in own.records.records.groups if own.records else ():
            users.setdefault(group.name, []).append(rank)
    return tuple(
        Membership(
            name=name,
            title="default_pg" if name == "0" else name,
            members=format_members(tuple(range(found.world_size) if name == "0" else ranks)),
            order=0,
        )
        for name, ranks in users.items()
    )


# --- monitored barriers ---------------------------------------------------------------------------


def _read_barrier(groups: _Groups, listed: Sequence[int]) -> dict[int, Logs]:
    """Return a log of one call for each rank, if rank 0 wrote which ranks did not come."""
    missing = groups.found.missing_in_barrier
    if not missing:
        return {}
    name = next(
        own.barrier.name
        for own in groups.found.ranks.values()
        if own.barrier and own.barrier.missing
    )
    group = groups.of_all(name, GLOO)
    record = CollectiveRecord(number=1, operation=name)
    inside = make_group_log(group=group.id, called=1, entered=1, completed=0, records=(record,))
    outside = make_group_log(group=group.id, called=0, entered=0, completed=0, records=())
    return {rank: {group.id: (group, outside if rank in missing else inside)} for rank in listed}


# --- silence --------------------------------------------------------------------------------------


def _find_silent(found: Found, listed: Sequence[int], logs: Mapping[int, Logs]) -> dict[int, Logs]:
    """Return the ranks whose output is there and has nothing about a call that the others wait in,
    with the log that follows: they have left the call before it.

    Each rank has a watchdog of its own. It reports any call that was queued and does not end,
    within a second of the others. One that reports nothing has queued no such call.
    """
    everyone = format_members(tuple(range(found.world_size)))
    opened = {
        rank: pair
        for rank, own in logs.items()
        if found.ranks[rank].calls or found.ranks[rank].set_ups  # a dump is not in the output
        for pair in _open_in_all(own, everyone)
    }
    every = [found.ranks.get(rank) or RankFound(rank) for rank in listed]
    shared = found.is_shared
    silent = [
        own.rank
        for own in every
        if not _wrote(own) and (own.has_output or (shared and own.rank < found.proven_size))
    ]
    is_few = len(silent) == 1 or len(silent) <= MAX_SILENT * len(opened)
    if not silent or not is_few or len(opened) < 2:
        return {}
    group, first = min(opened.values(), key=lambda pair: (pair[1].completed, pair[0].id))
    log = make_group_log(
        group=group.id, called=first.completed, entered=-1, completed=first.completed, records=()
    )
    return {rank: {group.id: (group, log)} for rank in silent}


def _open_in_all(logs: Logs, everyone: str) -> Iterator[tuple[ProcessGroup, GroupLog]]:
    """Yield the log of the group of all ranks, if a call of it is open."""
    for group, log in logs.values():
        if group.members == everyone and log.called > log.completed >= 0:
            yield group, log
