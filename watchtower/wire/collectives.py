"""Collective logs: the collectives that a rank has called in each of its process groups.

The agent takes them from the library's flight recorder and trims them on the node. An equal log is
sent once: ranks at the same place in a group share one `GroupLog`, and each rank names it by its
digest. A group is named by its global ranks and its creation order, because the library's group ids
differ between processes.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from dataclasses import dataclass

from watchtower.wire.bounds import (
    AGE,
    INTEGER,
    MAX_GROUP_RECORDS,
    MAX_GROUPS_PER_RANK,
    MAX_MEMBERS_TEXT,
    MAX_PEERS,
    MAX_UNKNOWN_CALLS,
    NAME,
    TEXT,
    both,
    bounded,
    characters,
    entries,
    every,
    integer,
)

_SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?:/([1-9]\d{0,8}))?)?", re.ASCII)

ANY_PEER = -1
"""The peer of a receive that accepts a message from any rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    id=NAME,
    members=characters(MAX_MEMBERS_TEXT),
    order=INTEGER,
    name=NAME,
    library=NAME,
)
class ProcessGroup:
    """A process group. All members compute the same `id` for it."""

    id: str
    members: str
    """Global ranks, ascending: "0-3", "0,5", "0-56/8" for every eighth from 0 to 56."""
    order: int = 0
    """How many groups with exactly these members were created before it."""
    name: str = ""
    """The program's name for it ("tensor_parallel"), else the library's name."""
    library: str = "gloo"
    """The library whose calls are counted. gloo and NCCL may both serve a group, and each counts
    from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(number=INTEGER, operation=NAME, signature=TEXT)
class CollectiveRecord:
    """One collective that a rank has called."""

    number: int
    """Its position among the group's collectives, from 1. All members have the same number."""
    operation: str
    """"all_reduce", without the library's prefix."""
    signature: str = ""
    """Element types and sizes of input and output: "float32[256] -> float32[256]"."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    digest=NAME,
    group=NAME,
    called=INTEGER,
    entered=integer(-1),
    completed=integer(-1),
    records=entries(MAX_GROUP_RECORDS),
    timeout_s=AGE,
    unknown=both(entries(MAX_UNKNOWN_CALLS), every(INTEGER)),
)
class GroupLog:
    """The position of a rank in one group, and its most recent calls there."""

    digest: str
    group: str
    """Id of the `ProcessGroup`."""
    called: int
    """Number of the last collective that the rank called; 0 before the first."""
    entered: int
    """Number of the last collective that is known to have started; -1 if the library does not
    record it. On NCCL a call is queued behind other GPU work, so a called collective may not have
    started."""
    completed: int
    """Number before the first collective that is known to be open: the rank has called it, and it
    is not complete. Earlier ones are over, except the `unknown` ones. -1 if the library does not
    record it."""
    records: tuple[CollectiveRecord, ...] = ()
    """The most recent collectives, ascending by number. Older ones are not sent."""
    timeout_s: float = 0.0
    """Seconds after which the library gives up the last of them; 0 if it does not record that. It
    is not part of the digest: logs of ranks at the same place would differ."""
    unknown: tuple[int, ...] = ()
    """Numbers of collectives of which the log does not show whether they are over, ascending: the
    library has no record of the call, or left it open although the rank has gone on. If there
    are `MAX_UNKNOWN_CALLS`, they are the newest ones, and all calls before them are unknown, too:
    `CallLog` reads it so."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    peer=integer(ANY_PEER),
    sends_begun=INTEGER,
    sends_done=INTEGER,
    receives_begun=INTEGER,
    receives_done=INTEGER,
)
class PeerTransfers:
    """Blocking sends and receives of a rank with one peer. The client counts them from its start.

    If more calls have begun than are done, the rank is inside such a call now. A call that is
    queued on a device is done when it is queued.
    """

    peer: int
    """Global rank, or `ANY_PEER`."""
    sends_begun: int = 0
    sends_done: int = 0
    receives_begun: int = 0
    receives_done: int = 0
    opened_by_send: bool = True
    """The rank's first call with this peer was a send: the rank starts each exchange and the peer
    answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    logs=entries(MAX_GROUPS_PER_RANK), peers=entries(MAX_PEERS), oldest_open=NAME, failure=TEXT
)
class RankCollectives:
    """The collective logs of one rank at one moment."""

    logs: tuple[str, ...] = ()
    """Digests of its `GroupLog`s."""
    peers: tuple[PeerTransfers, ...] = ()
    oldest_open: str = ""
    """Digest of the log whose open call is the first of all open calls that this process has made.
    On a device, calls of its other groups may be queued behind it. Empty if none is open, or if the
    library executes calls at once (gloo)."""
    failure: str = ""
    """Why the library's records could not be read and what to do, as a sentence. Empty if they were
    read, or if the process has none."""


def format_members(members: tuple[int, ...]) -> str:
    """Return ascending global ranks as text: runs as "0-3", even strides as "0-56/8", separated by
    commas."""
    parts: list[str] = []
    at = 0
    while at < len(members):
        first, end = members[at], at + 1
        stride = members[end] - first if end < len(members) else 0
        while end < len(members) and members[end] - members[end - 1] == stride:
            end += 1
        if end - at == 2 and stride > 1:
            end -= 1  # two ranks do not make a stride: the second may start the next run
        last = members[end - 1]
        if end - at == 1:
            parts.append(str(first))
        else:
            parts.append(f"{first}-{last}" if stride == 1 else f"{first}-{last}/{stride}")
        at = end
    return ",".join(parts)


def parse_members(text: str, limit: int) -> tuple[int, ...]:
    """Return the ranks of a text that `format_members` wrote.

    Raises ValueError for any other text, and for more than `limit` members.
    """
    members: list[int] = []
    for part in filter(None, text.split(",")):
        spelled = _SPAN.fullmatch(part)
        if spelled is None:
            raise ValueError(f"{part[:40]!r} is not a valid rank, range or stride of ranks")
        first, last, stride = spelled.groups()
        found = range(int(first), int(last or first) + 1, int(stride or 1))
        if len(members) + len(found) > limit:
            raise ValueError(f"a group of more than {limit} members")
        members.extend(found)
    if any(after <= before for before, after in itertools.pairwise(members)):
        raise ValueError("the members of a group are not in ascending order")
    return tuple(members)


def name_group(members: str, order: int, library: str = "gloo") -> str:
    """Return a group's id: 16 hex digits of a hash of its members, creation order and library."""
    text = f"{members} {order} {library}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def make_group_log(
    *,
    group: str,
    called: int,
    entered: int,
    completed: int,
    records: tuple[CollectiveRecord, ...],
    timeout_s: float = 0.0,
    unknown: tuple[int, ...] = (),
) -> GroupLog:
    """Return a log whose digest is 16 hex digits of a hash of its fields except the timeout."""
    lines = [f"{group} {called} {entered} {completed}"]
    lines += [f"{each.number}\t{each.operation}\t{each.signature}" for each in records]
    lines += [f"unknown {' '.join(map(str, unknown))}"] if unknown else []
    raw = "\n".join(lines).encode("utf-8", "surrogatepass")
    return GroupLog(
        digest=hashlib.blake2b(raw, digest_size=8).hexdigest(),
        group=group,
        called=called,
        entered=entered,
        completed=completed,
        records=records,
        timeout_s=timeout_s,
        unknown=unknown,
    )


def change_group_log(
    log: GroupLog, *, group: str = "", records: tuple[CollectiveRecord, ...] | None = None
) -> GroupLog:
    """Return a log with another group id or other records, and the digest of its fields."""
    return make_group_log(
        group=group or log.group,
        called=log.called,
        entered=log.entered,
        completed=log.completed,
        records=log.records if records is None else records,
        timeout_s=log.timeout_s,
        unknown=log.unknown,
    )
