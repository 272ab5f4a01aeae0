"""Turns torch's records into collective logs: the progress of a rank in each of its groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from watchtower.readers.torch_records import GroupCalls, TorchCall, TorchRecords, order_of_name
from watchtower.wire.bounds import (
    MAX_GROUP_RECORDS,
    MAX_GROUPS_PER_RANK,
    MAX_MEMBERS_TEXT,
    MAX_NAME,
    MAX_UNKNOWN_CALLS,
)
from watchtower.wire.collectives import (
    GroupLog,
    ProcessGroup,
    format_members,
    make_group_log,
    name_group,
)
from watchtower.writing.printable import printable

MAX_RANK_RECORDS = 4096
"""Collectives sent of one rank: the last eight of 512 groups. For further groups only counts are
sent.
"""

GLOO = "gloo"
"""Gloo's recorder. A gloo call starts when it is called; a NCCL call first waits for the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """One process group of a process."""

    name: str
    """The name in the library's records."""
    title: str
    """The name for people."""
    members: str
    order: int
    """How many groups of exactly these members were made before it."""
    made: int = 1
    """How many groups with this name were made, including this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimmed:
    """One recorder's records, as they are sent."""

    logs: tuple[tuple[ProcessGroup, GroupLog], ...] = ()
    oldest_open: str = ""
    """As in `RankRecords`. Empty for gloo, which executes every call at once."""
    missing: str = ""
    """What is missing, as a sentence."""


def number_groups(groups: Iterable[tuple[str, str, str]]) -> tuple[Membership, ...]:
    """Return the groups, each with its number among groups of equal members.

    `groups` are (name, title, members) in the order in which they were made.
    """
    made: Counter[str] = Counter()
    named: Counter[str] = Counter()
    found: dict[str, Membership] = {}
    for name, title, members in groups:
        if len(found) >= MAX_GROUPS_PER_RANK:
            break
        order, made[members] = made[members], made[members] + 1
        named[name] += 1
        # A name that is used again is a new group: the records belong to the last one.
        found[name] = Membership(
            name=name, title=title, members=members, order=order, made=named[name]
        )
    return tuple(found.values())


def trim(recorder: str, records: TorchRecords, groups: tuple[Membership, ...]) -> Trimmed:
    """Return a log for each group with known members."""
    if records.is_blank:
        return Trimmed()
    known = groups or _groups_of_config(records)
    called = {group.name: group for group in records.groups}
    unknown = sorted(called.keys() - {each.name for each in known})
    logs: list[tuple[ProcessGroup, GroupLog]] = []
    opened: dict[str, int] = {}
    forgotten = mixed = 0
    limit = MAX_RANK_RECORDS
    for membership in known:
        calls = called.get(membership.name)
        if calls is None and records.forgot_groups:
            forgotten += 1
            continue
        if calls is not None and calls.seen < membership.made:
            mixed += 1  # they may be the calls of an earlier group with that name
            continue
        group = _as_group(recorder, membership, calls)
        settled = settle(recorder, records, calls.calls if calls else ())
        log = _as_log(recorder, group.id, settled, limit)
        limit -= len(log.records)
        logs.append((group, log))
        if settled.first_open is not None and recorder != GLOO:
            opened[group.id] = settled.first_open.made_at
    return Trimmed(
        logs=tuple(logs),
        oldest_open=min(opened, key=opened.__getitem__, default=""),
        missing="; ".join(_explain_missing(unknown, forgotten, mixed)),
    )


def _explain_missing(unknown: list[str], forgotten: int, mixed: int) -> Iterator[str]:
    if unknown:
        names = ", ".join(printable(name, MAX_NAME)[:40] for name in unknown[:3])
        yield (
            f"the members of {len(unknown)} process groups ({names}) are not known, so their "
            "logs are skipped: import watchtower_heartbeat before torch.distributed is used"
        )
    if forgotten:
        yield (
            f"{forgotten} process groups may have calls that the recorder has overwritten: a "
            "larger TORCH_FR_BUFFER_SIZE prevents this"
        )
    if mixed:
        yield (
            f"{mixed} process groups have the name of an earlier one. The recorder does not "
            "show which of them made the calls until each was used"
        )


def _groups_of_config(records: TorchRecords) -> tuple[Membership, ...]:
    """Return the groups whose members the recorder knows. NCCL's knows them, gloo's does not."""
    titles = {group.name: group.description for group in records.groups}
    return number_groups(
        (name, printable(titles.get(name) or name, MAX_NAME), members)
        for name in sorted(records.members, key=order_of_name)
        if len(members := format_members(records.members[name])) <= MAX_MEMBERS_TEXT
    )


def _as_group(recorder: str, membership: Membership, calls: GroupCalls | None) -> ProcessGroup:
    """Return the group. NCCL and gloo count calls separately, so each library has a group of its
    own.
    """
    title = membership.title
    if title == membership.name and calls is not None and calls.description:
        title = printable(calls.description, MAX_NAME)
    return ProcessGroup(
        id=name_group(membership.members, membership.order, recorder),
        members=membership.members,
        order=membership.order,
        library=recorder,
        name=title,
    )


def _as_log(recorder: str, group: str, settled: Settled, limit: int) -> GroupLog:
    calls = settled.calls
    called = calls[-1].number if calls else 0
    entered = called
    if calls and recorder != GLOO:
        entered = max((call.number for call in calls if call.started), default=-1)
    last = calls[-min(MAX_GROUP_RECORDS, limit) :] if limit > 0 else ()
    return make_group_log(
        group=group,
        called=called,
        entered=entered,
        completed=called if settled.first_open is None else settled.first_open.number - 1,
        unknown=settled.unknown[-MAX_UNKNOWN_CALLS:],
        records=tuple(call.as_record() for call in last),
        timeout_s=calls[-1].timeout_s if calls else 0.0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The calls of one group, and what is known about the end of each."""

    calls: tuple[TorchCall, ...] = ()
    first_open: TorchCall | None = None
    """The first call that is known to be open; all calls after it are open too, or unknown."""
    unknown: tuple[int, ...] = ()
    """Numbers of calls that may be over or open."""


def settle(recorder: str, records: TorchRecords, calls: tuple[TorchCall, ...]) -> Settled:
    """Decide for each call of a group whether it is over, open, or unknown.

    The ring's calls are not a prefix: some calls have no record, and some records are never marked
    as over. So later calls decide:

    * After a call that is over come only calls that the rank made later. NCCL executes the calls of
      a group in order, so all before it are over. gloo may execute two at a time: a call that it
      left open there is unknown. A number without a record is not waited in any more.
    * A call is unknown if the process made another one after its timeout had passed: it has given
      the call up.
    * A number without a record, and without a later call that is over, is unknown.
    * Calls that the ring has overwritten are over: hundreds came after them.
    """
    last_over = max((call.number for call in calls if call.over), default=0)
    first_open: TorchCall | None = None
    unknown: list[int] = []
    expected = 1 if records.is_whole or not calls else calls[0].number
    for call in calls:
        # A process writes its numbers: a gap may be of any size.
        gap_from = max(expected, last_over + 1, call.number - MAX_UNKNOWN_CALLS)
        unknown += range(gap_from, call.number)
        expected = call.number + 1
        if call.over or (recorder != GLOO and call.number < last_over):
            continue
        if call.number < last_over or records.last_made_ns > call.gives_up_at_ns:
            unknown.append(call.number)
        elif first_open is None:
            first_open = call
    return Settled(calls=calls, first_open=first_open, unknown=tuple(unknown))
