"""Dumps that wait for the tower, as JSON in memory. Their size is known and bounded."""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import msgspec

from agent.delivery.batch_size import encode_batch
from agent.delivery.clocks import Moment
from watchtower.wire.dumps import DumpBatch

DUMPS_PATH, SERIES_PATH = "/ingest/v1/dumps", "/ingest/v1/series"

MAX_WAITING_BATCHES = 64
MAX_WAITING_BYTES = 32 << 20
"""Bytes of dumps in memory while the tower is away. Real dumps have 100 kB, the largest 16 MB."""

MAX_HELD_S = 24 * 3600.0
"""Older dumps are not sent: that hang was examined without them."""

log = logging.getLogger(__name__)


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
        memory_only=batch.glance,
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


class Keeper(Protocol):
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
        self._keeper: Keeper | None = None

    def attach(self, keeper: Keeper) -> None:
        """Set the keeper that stores the waiting dumps. Call it before the first dump."""
        self._keeper = keeper

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
        kept = self._keeper.ids() if self._keeper is not None else frozenset()
        with self._lock:
            return len(kept | self._dumps.keys())

    def _notice(self, removed: str = "") -> None:
        if self._keeper is not None:
            self._keeper.notice(removed)

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
        if self._keeper is None or dump.id not in self._keeper.ids():
            self._count_loss(DumpLoss.FULL)
            log.warning(
                "dump %s of job %s is dropped: too many dumps are waiting", dump.id, dump.job
            )
