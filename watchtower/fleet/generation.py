"""A generation: one attempt of a job, with its ranks as last reported and their dumps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from watchtower.fleet.arrivals import Arrivals
from watchtower.fleet.checkpoints import Checkpoints
from watchtower.fleet.pace import Pace
from watchtower.fleet.reporter import Reporter
from watchtower.fleet.sizes import count_text, share_names, shorten
from watchtower.fleet.slowness import Slowness
from watchtower.fleet.throughput import Throughput
from watchtower.wire.dumps import DumpBatch, RankDump, SentBatch
from watchtower.wire.orders import Deadline
from watchtower.wire.report import (
    Ending,
    EndingKind,
    RankVitals,
    lowest_step,
)

MIN_MISSING = 256
MISSING_PER_RANK = 4
MAX_MISSING = 4096
"""Missing ranks are listed one by one: `MISSING_PER_RANK` of them per rank seen, but at least
`MIN_MISSING` and at most `MAX_MISSING`. The world size that a job reports may be wrong, and must
not cost time or memory."""

MAX_RIVALS = 1024
"""Most rivals of one generation: the number of processes of one node. A real job has fewer."""

RIVAL_MEMORY_S = 60.0
"""A rival is dropped when it was not reported for this many seconds."""

MAX_PHASES = 32
"""Most phases with step times of their own. A program may number its phases, which must not fill
the memory."""


class ProcessKey(NamedTuple):
    """Identifies a process, even if its pid is used again."""

    node: str
    pid: int
    start_time: int


class LaunchKey(NamedTuple):
    """Identifies a launch: the name and owner of its job, its node, and its id on this node."""

    name: str
    owner: str
    node: str
    id: str
    """Empty from an agent that sends no launches."""


@dataclass(slots=True, eq=False)
class DumpBody:
    """The body of one batch of dumps. All ranks of the batch share it."""

    body: bytes
    holders: int = 0
    """Number of ranks that refer to it with one of their last two dumps."""
    native_ranks: frozenset[int] = frozenset()
    """Ranks whose native functions it contains, or the reason why they were not read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastGeneration:
    """The part of a generation that is stored, so that a restarted tower recognizes it."""

    number: int
    typical_step_s: float = 0.0
    processes: frozenset[ProcessKey] = frozenset()
    """Empty for a job that was dropped: its next processes are a new generation."""
    owner: str = ""


@dataclass(slots=True)
class RankRecord:
    """One rank of one generation, as last reported."""

    key: ProcessKey
    vitals: RankVitals
    reporter: Reporter
    """Agent that reported it last."""
    seen_at: float
    first_seen_at: float
    computed_at: float
    """When its process tree last used CPU."""
    moved_data_at: float
    """When its process tree last used storage or network."""
    phase_changed_at: float = float("-inf")
    """When it last entered or left a marked phase, as far as the reports show it."""
    outside_s: float = 0.0
    """Seconds outside marked phases since its last heartbeat, as far as the reports show them."""
    ended_at: float | None = None
    dumps: list[tuple[float, DumpBody]] = field(default_factory=list)
    """The times of its last two dumps, oldest first, and the bodies that contain them."""
    text_bytes: int = 0
    """Bytes of its texts; 0 if they are short."""
    deadline: Deadline | None = None
    """The last one that its agent was told."""

    def copy(self) -> RankRecord:
        """Return a shallow copy; the values of a record are never changed in place."""
        # `dataclasses.replace` takes ten times as long, and a job has thousands of ranks.
        return RankRecord(
            self.key,
            self.vitals,
            self.reporter,
            self.seen_at,
            self.first_seen_at,
            self.computed_at,
            self.moved_data_at,
            self.phase_changed_at,
            self.outside_s,
            self.ended_at,
            self.dumps,
            self.text_bytes,
            self.deadline,
        )

    def moved_at(self, *, waits: bool = False) -> float:
        """Return when it last moved; CPU does not count if its training thread `waits`."""
        return self.moved_data_at if waits else max(self.computed_at, self.moved_data_at)

    def progressed_at(self) -> float:
        """Return when it last made a step, or entered or left a phase; `-inf` if never.

        It declares each of these itself, so time without progress counts from the latest one.
        """
        beat = self.vitals.beat
        beat_at = float("-inf") if beat is None else self.seen_at - beat.age_s
        return max(beat_at, self.phase_changed_at)

    @property
    def launch(self) -> LaunchKey:
        """The launch that its process belongs to."""
        return LaunchKey(self.vitals.job, self.vitals.owner, self.key.node, self.vitals.launch)

    @property
    def is_live(self) -> bool:
        """Whether the process had not ended when it was last reported."""
        return self.ended_at is None

    @property
    def is_end_unseen(self) -> bool:
        """Whether no agent watched the process when it ended. It may have finished or failed."""
        return self.ended_at is not None and self.ended_at > self.seen_at

    def vanish(self, now: float) -> None:
        """Record that the process has ended, in an unknown way, while no agent watched it."""
        self.ended_at = now
        self.vitals = replace(self.vitals, ended=Ending(kind=EndingKind.UNKNOWN, age_s=0.0))

    def age_s(self, now: float, interval_s: float) -> float:
        """Return the seconds since the last beat; 0 without a beat.

        They grow between reports, but for at most two intervals, so that a late report does not
        make a rank seem late.
        """
        beat = self.vitals.beat
        return 0.0 if beat is None else beat.age_s + min(now - self.seen_at, 2 * interval_s)


@dataclass(slots=True)
class Generation:
    """One attempt of a job: its ranks between two restarts."""

    job: str
    number: int
    began_at: float
    ranks: dict[int, RankRecord] = field(default_factory=dict)
    rivals: dict[ProcessKey, tuple[RankVitals, float]] = field(default_factory=dict)
    """Second processes that claim a rank of another process, and when they were last reported."""
    paces: dict[str, Pace] = field(default_factory=dict)
    """Step times by phase; "" is training outside phases."""
    throughput: Throughput = field(default_factory=Throughput)
    """Time for many steps outside phases."""
    dumps_bytes: int = 0
    """Bytes of all bodies that contain dumps of its ranks."""
    text_bytes: int = 0
    """Bytes of the texts of its ranks that are longer than usual."""
    arrivals: Arrivals = field(default_factory=Arrivals)
    """Batches of dumps that have arrived."""
    known: frozenset[ProcessKey] = frozenset()
    """Its processes before the tower was restarted. Empty if it began after the restart."""
    awaited: set[ProcessKey] = field(default_factory=set)
    """The processes in `known` that were not reported again yet."""
    recalled_at: float = float("-inf")
    """When the restarted tower recognized it."""
    recall_wanted: bool = True
    """The store may contain more dumps of its ranks: from before the tower was restarted, or from
    before a rank was reported."""
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    resumed_at: float = float("-inf")
    """When the job last resumed after a suspension. Ages count from this time."""

    @property
    def world_size(self) -> int:
        """Number of ranks that the job reports, but at least the highest rank seen plus one."""
        claimed = max((r.vitals.world_size or 0 for r in self.ranks.values()), default=0)
        return max(claimed, max(self.ranks, default=-1) + 1)

    @property
    def checkpoint_step(self) -> int | None:
        """Step of the last complete checkpoint; None if none is known."""
        return self.checkpoints.find_last(r.vitals.beat for r in self.ranks.values())

    def missing_ranks(self) -> tuple[int, ...]:
        """Return the ranks that were never reported, in order; see `MAX_MISSING` for the limit."""
        limit = min(MAX_MISSING, max(MIN_MISSING, MISSING_PER_RANK * len(self.ranks)))
        missing = (rank for rank in range(self.world_size) if rank not in self.ranks)
        return tuple(islice(missing, limit))

    def pace(self, phase: str) -> Pace:
        """Return the step times in `phase`. Beyond `MAX_PHASES`, phases share the plain pace."""
        pace = self.paces.get(phase)
        if pace is not None:
            return pace
        if len(self.paces) >= MAX_PHASES and phase:
            return self.pace("")
        return self.paces.setdefault(phase, Pace())

    def end_tick(self, now: float) -> None:
        """Add one sample to each phase, from the step times of this tick."""
        if any(r.vitals.beat and r.vitals.beat.phase for r in self.live()):
            self.throughput.interrupt()
        elif self.throughput.is_due(now):
            self.throughput.take(self.step(), now)
        for pace in self.paces.values():
            pace.end_tick(self.throughput.latest)

    @property
    def slowness(self) -> Slowness:
        """Whether its steps have become longer: by the single ones, or over many of them."""
        return max(
            self.pace("").slowness, self.throughput.slowness, key=lambda slowness: slowness.most
        )

    @property
    def is_paced(self) -> bool:
        """Whether enough steps were seen in any phase to know when a rank is late."""
        return any(pace.is_learned for pace in self.paces.values())

    def note_rival(self, key: ProcessKey, vitals: RankVitals, seen_at: float) -> None:
        """Record a second process of a rank without long texts. At most `MAX_RIVALS` are stored."""
        if key in self.rivals or len(self.rivals) < MAX_RIVALS:
            is_short = not count_text(vitals)
            self.rivals[key] = (vitals if is_short else self._share(shorten(vitals)), seen_at)

    def expire_rivals(self, now: float) -> None:
        """Drop rivals that are no longer reported."""
        old = [k for k, (_, seen_at) in self.rivals.items() if now - seen_at > RIVAL_MEMORY_S]
        for key in old:
            del self.rivals[key]

    def note_vitals(self, record: RankRecord, vitals: RankVitals) -> None:
        """Set the latest vitals of a record of this generation, and count their texts."""
        count = count_text(vitals)
        record.vitals = self._share(vitals) if count else vitals
        if count == record.text_bytes:
            return
        self.text_bytes += count - record.text_bytes
        record.text_bytes = count

    def _share(self, vitals: RankVitals) -> RankVitals:
        known = next(iter(self.ranks.values()), None)
        return vitals if known is None else share_names(vitals, known.vitals)

    def take_dumps(self, sent: SentBatch, taken_at: float) -> list[RankDump]:
        """Add the dumps of a batch to their ranks. Returns the dumps that were not added before."""
        batch = sent.batch
        native = frozenset(dump.rank for dump in batch.ranks if dump.functions is not None)
        body = DumpBody(sent.body, native_ranks=native)
        left = self.arrivals.left_of(batch.id)
        unclaimed, taken = set(), []
        for dump in batch.ranks:
            if left is not None and dump.rank not in left:
                continue
            record = self.ranks.get(dump.rank)
            if record is None:
                unclaimed.add(dump.rank)
            elif record.key == ProcessKey(batch.node, dump.pid, dump.start_time):
                self._hold(record, taken_at, body)
                taken.append(dump)
        self.arrivals.note(batch.id, unclaimed)
        return taken

    def put(self, record: RankRecord) -> None:
        """Set the record of a rank, in place of an earlier one."""
        before = self.ranks.get(record.vitals.rank)
        if before is not None:
            self._release(before.dumps)
            self.text_bytes -= before.text_bytes
        self.ranks[record.vitals.rank] = record
        self.text_bytes += record.text_bytes

    def remove(self, rank: int) -> None:
        """Remove the record of a rank that is of another job."""
        record = self.ranks.pop(rank)
        self._release(record.dumps)
        self.text_bytes -= record.text_bytes

    def _hold(self, record: RankRecord, taken_at: float, body: DumpBody) -> None:
        if body.holders == 0:
            self.dumps_bytes += len(body.body)
        body.holders += 1
        dumps = sorted([*record.dumps, (taken_at, body)], key=lambda item: item[0])
        record.dumps = dumps[-2:]
        self._release(dumps[:-2])

    def _release(self, dumps: Iterable[tuple[float, DumpBody]]) -> None:
        for _, body in dumps:
            body.holders -= 1
            if body.holders == 0:
                self.dumps_bytes -= len(body.body)

    def drop_dumps(self, excess: int) -> None:
        """Drop bodies of dumps, largest first, until `excess` bytes are free.

        Ranks without any other body count as not dumped.
        """
        bodies = {body for record in self.ranks.values() for _, body in record.dumps}
        gone: set[DumpBody] = set()
        for body in sorted(bodies, key=lambda each: len(each.body), reverse=True):
            if excess <= 0:
                break
            gone.add(body)
            excess -= len(body.body)
        self.dumps_bytes -= sum(len(body.body) for body in gone)
        for record in self.ranks.values():
            # A new list, because a diagnosis that was requested before uses the old one.
            record.dumps = [item for item in record.dumps if item[1] not in gone]

    def drop_texts(self) -> None:
        """Shorten the long texts of its ranks, until they are reported again."""
        for record in self.ranks.values():
            if record.text_bytes:
                record.vitals, record.text_bytes = self._share(shorten(record.vitals)), 0
        self.text_bytes = 0

    def drop_paces(self) -> None:
        """Drop the step times of all marked phases."""
        self.paces = {"": self.pace("")}

    def own(self, batch: DumpBatch) -> list[RankDump]:
        """Return the dumps of a batch that belong to processes of this generation."""
        return [
            dump
            for dump in batch.ranks
            if (record := self.ranks.get(dump.rank)) is not None
            and record.key == ProcessKey(batch.node, dump.pid, dump.start_time)
        ]

    def is_returning(self, now: float, patience_s: float) -> bool:
        """Return whether some of its processes may still be reported after the tower's restart."""
        return bool(self.awaited) and now - self.recalled_at < patience_s

    def has_stepped_since(self, since: float) -> bool:
        """Return whether every live rank with steps has a beat after `since`."""
        beats = [(r.seen_at, r.vitals.beat) for r in self.live()]
        last = [seen_at - beat.age_s for seen_at, beat in beats if beat and beat.step >= 0]
        return bool(last) and min(last) > since

    def last_beat_of_all(self) -> float | None:
        """Return the oldest last beat of all live ranks; None without any heartbeat page."""
        beats = [(r.seen_at, r.vitals.beat) for r in self.live()]
        return min((seen_at - beat.age_s for seen_at, beat in beats if beat), default=None)

    def remember(self, owner: str) -> PastGeneration:
        """Return the data by which a restarted tower recognizes this generation."""
        return PastGeneration(
            number=self.number,
            owner=owner,
            typical_step_s=self.pace("").typical_s,
            # Ranks are reported again one node after the other. Those not reported yet must stay.
            processes=self.known.union(record.key for record in self.ranks.values()),
        )

    def live(self) -> Iterator[RankRecord]:
        """Return the records of ranks whose process has not ended."""
        # As `is_live`, without a call: there are thousands of ranks, twice a second.
        return (record for record in self.ranks.values() if record.ended_at is None)

    def step(self) -> int:
        """Return the highest step that every rank with heartbeats has made, -1 before the first."""
        return lowest_step(record.vitals.beat for record in self.ranks.values())


def has_died(record: RankRecord) -> bool:
    """Return whether a rank did not end normally, or it is not known how it ended.

    A heartbeat page with "finished" is a normal end even if the kernel reports no exit code.
    """
    ended = record.vitals.ended
    return ended is not None and not (ended.kind is EndingKind.EXIT and ended.code in (0, None))
