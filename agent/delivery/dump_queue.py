"""Dumps that wait for the tower, as JSON in memory. Their size is known and bounded.

A batch that is longer than a tower accepts would be refused for good, so it is cut before.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, NamedTuple, Protocol

import msgspec

from agent.clocks import Moment
from watchtower.wire.bounds import MAX_DUMPS_BYTES
from watchtower.wire.collectives import RankCollectives
from watchtower.wire.dumps import ChildDump, DumpBatch, DumpFailure, FailureKind, RankDump

log = logging.getLogger(__name__)

HEAD_BYTES = 64
"""Space for `held_s`, which is inserted when the batch is sent."""

LEFT_OUT = "dropped, because the dumps of this node together are longer than a tower accepts"


class FittedBatch(NamedTuple):
    """A batch as JSON, and whether parts of it were dropped."""

    body: bytes
    is_cut: bool


def encode_batch(batch: DumpBatch, limit: int = MAX_DUMPS_BYTES - HEAD_BYTES) -> bytes:
    """Return the batch as JSON of at most `limit` bytes. The least useful parts are dropped first.

    Only thousands of children with deep stacks, or endless names, make a batch that long.
    """
    return fit_batch(batch, limit).body


def fit_batch(batch: DumpBatch, limit: int) -> FittedBatch:
    """Return the same with whether parts were dropped."""
    whole = body = msgspec.json.encode(batch)
    for cut in _CUTS:
        if len(body) <= limit:
            break
        batch = _without_unused(replace(batch, ranks=tuple(cut(rank) for rank in batch.ranks)))
        body = msgspec.json.encode(batch)
    return FittedBatch(body, is_cut=len(body) < len(whole))


_CUT_LATER = ("failure", "native", "collectives")
"""What may be missing in a dump, but is dropped by a cut of its own, or never."""

_OTHER_EVIDENCE: dict[str, Any] = {
    each.name: None
    for each in fields(RankDump)
    if each.default is None and each.name not in _CUT_LATER
}
"""A form of evidence may be missing: each new one is here, until it has a cut of its own."""


def _without_other_evidence(rank: RankDump) -> RankDump:
    """Drop the forms of evidence that no cut below knows."""
    return replace(rank, **_OTHER_EVIDENCE)


def _without_child_stacks(rank: RankDump) -> RankDump:
    return replace(rank, children=tuple(_without_threads(child) for child in rank.children))


def _without_threads(child: ChildDump) -> ChildDump:
    return replace(child, threads=(), failure=_left_out(child.failure)) if child.threads else child


def _without_side_threads(rank: RankDump) -> RankDump:
    return replace(rank, threads=tuple(thread for thread in rank.threads if thread.main))


def _without_collectives(rank: RankDump) -> RankDump:
    if rank.collectives is None:
        return rank
    peers, failure = rank.collectives.peers, rank.collectives.failure or LEFT_OUT
    return replace(rank, collectives=RankCollectives(peers=peers, failure=failure))


def _without_children(rank: RankDump) -> RankDump:
    return replace(rank, children=())


def _without_stacks(rank: RankDump) -> RankDump:
    return replace(rank, threads=(), failure=_left_out(rank.failure)) if rank.threads else rank


_CUTS: tuple[Callable[[RankDump], RankDump], ...] = (
    _without_other_evidence,
    _without_child_stacks,
    _without_side_threads,
    _without_children,
    _without_collectives,
    _without_stacks,
)
"""Parts dropped in this order until the batch fits. Kernel state and transfer counts of 768 ranks
are never dropped; they have at most 12 MB.
"""


def _left_out(failure: DumpFailure | None) -> DumpFailure:
    return failure or DumpFailure(kind=FailureKind.OTHER, help_text=LEFT_OUT)


def _without_unused(batch: DumpBatch) -> DumpBatch:
    """Drop the stacks and logs to which no rank refers any more."""
    threads = [thread for rank in batch.ranks for thread in rank.threads]
    threads += [t for rank in batch.ranks for child in rank.children for t in child.threads]
    digests = {thread.digest for thread in threads}
    named = {log for rank in batch.ranks if rank.collectives for log in rank.collectives.logs}
    logs = tuple(log for log in batch.group_logs if log.digest in named)
    groups = {log.group for log in logs}
    return replace(
        batch,
        stacks=tuple(stack for stack in batch.stacks if stack.digest in digests),
        groups=tuple(group for group in batch.groups if group.id in groups),
        group_logs=logs,
    )


DUMPS_PATH, SERIES_PATH = "/ingest/v1/dumps", "/ingest/v1/series"

MAX_WAITING_BATCHES = 64
MAX_WAITING_BYTES = 32 << 20
"""Bytes of dumps in memory while the tower is away. Real dumps have 100 kB, the largest 16 MB."""

MAX_HELD_S = 24 * 3600.0
"""Older dumps are not sent: that hang was examined without them."""


class DumpLoss(Enum):
    """Why a dump never reached the tower."""

    FULL = "full"
    REFUSED = "refused"
    TOO_OLD = "too_old"
    DAMAGED = "damaged"


CountDumpLoss = Callable[[DumpLoss], None]

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingDump:
    """One batch that waits for the tower, and when it was dumped."""

    id: str
    job: str
    taken: Moment
    body: bytes
    """The batch as JSON. `held_s` is inserted when it is sent."""
    memory_only: bool = False
    """Not stored on disk: a sample, because the next one comes in seconds, or series, because the
    tower orders them again."""
    path: str = DUMPS_PATH
    """Where it is posted."""
    owner: str = ""
    """Owner of the job. Owners take turns, and share the limits of the queue."""

    def message(self, held_s: float) -> bytes:
        """Return the message to send. Raises ValueError if the body is not a JSON object."""
        fields = _FIELDS.decode(self.body)
        fields["held_s"] = msgspec.Raw(msgspec.json.encode(held_s))
        return msgspec.json.encode(fields)


def as_waiting(batch: DumpBatch, taken: Moment) -> WaitingDump:
    """Return the batch as JSON, encoded once for the spool and for every attempt to send it."""
    body = encode_batch(batch)
    return WaitingDump(
        id=batch.id,
        job=batch.job,
        taken=taken,
        body=body,
        memory_only=batch.sample,
        owner=batch.owner,
    )


def oldest_of_most(dumps: Mapping[str, tuple[str, int]], *, many: bool) -> str:
    """Return the id of the dump to drop: the oldest one of the owner that has most of them.

    `dumps` maps id to (owner, bytes), oldest first. With `many` the number of dumps decides, else
    their bytes.
    """
    sums: Counter[str] = Counter()
    for owner, size in dumps.values():
        sums[owner] += 1 if many else size
    ((most, _),) = sums.most_common(1)
    return next(dump_id for dump_id, (owner, _) in dumps.items() if owner == most)


class Spooler(Protocol):
    """Stores dumps beyond the life of this process. Its methods never block."""

    def ids(self) -> frozenset[str]:
        """Return the ids of the stored dumps."""

    def notice(self, removed: str = "") -> None:
        """Check the queue soon. A removed dump need not be stored any more."""


class DumpQueue:
    """Dumps in memory; owners take turns. Over the limits, the owner with most dumps loses its
    oldest.

    Every dump goes through memory to the tower, so a disk that hangs does not delay it.
    """

    def __init__(self, count_loss: CountDumpLoss) -> None:
        self._count_loss = count_loss
        self._dumps: OrderedDict[str, WaitingDump] = OrderedDict()
        self._bytes = 0
        self._turns: dict[str, int] = {}
        """By owner: the number of its last turn, or the current number when its first dump came."""
        self._turn = 0
        self._lock = threading.Lock()
        self._spooler: Spooler | None = None

    def attach(self, spooler: Spooler) -> None:
        """Set the spooler that stores the waiting dumps. Call it before the first dump."""
        self._spooler = spooler

    def put(self, dump: WaitingDump) -> None:
        """Add a dump. A dump that is here already is ignored."""
        with self._lock:
            if dump.id in self._dumps:
                return
            self._dumps[dump.id] = dump
            self._bytes += len(dump.body)
            self._turns.setdefault(dump.owner, self._turn)
            while self._is_over():
                self._drop(self._oldest_of_most())
        self._notice()

    def first(self) -> WaitingDump | None:
        """Return the dump to send next, without removing it."""
        with self._lock:
            dumps = self._dumps.values()
            return min(dumps, key=lambda each: self._turns[each.owner], default=None)

    def all(self) -> list[WaitingDump]:
        """Return the dumps in memory, oldest first, postponed ones last."""
        with self._lock:
            return list(self._dumps.values())

    def postpone(self, dump_id: str) -> None:
        """Move a dump to the end, so that one that the tower cannot process does not delay the
        others.
        """
        with self._lock:
            if (dump := self._dumps.get(dump_id)) is not None:
                self._dumps.move_to_end(dump_id)
                self._note_turn(dump.owner)

    def remove(self, dump_id: str) -> None:
        """Remove a dump that was delivered or is lost."""
        with self._lock:
            if (dump := self._dumps.pop(dump_id, None)) is not None:
                self._bytes -= len(dump.body)
                self._note_turn(dump.owner)
        self._notice(removed=dump_id)

    def count(self) -> int:
        """Return how many dumps wait, in memory or on disk."""
        kept = self._spooler.ids() if self._spooler is not None else frozenset()
        with self._lock:
            return len(kept | self._dumps.keys())

    def _notice(self, removed: str = "") -> None:
        if self._spooler is not None:
            self._spooler.notice(removed)

    def _note_turn(self, owner: str) -> None:
        waiting = {each.owner for each in self._dumps.values()}
        self._turn += 1
        turns = {**self._turns, owner: self._turn}
        self._turns = {each: turn for each, turn in turns.items() if each in waiting}

    def _is_over(self) -> bool:
        many, heavy = len(self._dumps) > MAX_WAITING_BATCHES, self._bytes > MAX_WAITING_BYTES
        return many or (heavy and len(self._dumps) > 1)

    def _oldest_of_most(self) -> WaitingDump:
        sizes = {each.id: (each.owner, len(each.body)) for each in self._dumps.values()}
        return self._dumps[oldest_of_most(sizes, many=len(sizes) > MAX_WAITING_BATCHES)]

    def _drop(self, dump: WaitingDump) -> None:
        del self._dumps[dump.id]
        self._bytes -= len(dump.body)
        if self._spooler is None or dump.id not in self._spooler.ids():
            self._count_loss(DumpLoss.FULL)
            log.warning(
                "dump %s of job %s is dropped: too many dumps are waiting", dump.id, dump.job
            )
