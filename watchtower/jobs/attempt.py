"""An attempt of a job: its ranks, their dumps and their pace."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from watchtower.evidence.movement import moves_data
from watchtower.jobs.launchers import Launchers
from watchtower.jobs.pace import Pace, Slowness, Throughput
from watchtower.jobs.ranks import (
    CHARACTER_BYTES,
    DumpBody,
    ProcessKey,
    RankRecord,
    Reporter,
    count_text,
    outside_s,
    phase_changed_at,
    share_names,
    shorten,
)
from watchtower.policy import Policy
from watchtower.wire.dumps import DumpBatch, RankDump, SentBatch
from watchtower.wire.report import (
    CHECKPOINT,
    Beat,
    ProcessState,
    RankVitals,
    lowest_step,
)

UNCLAIMED_BYTES = 160
"""A rank whose dumps arrived before a report."""

BATCH_BYTES = 512
"""The stored id of a batch of dumps."""


MAX_ARRIVALS_BYTES = 8 * 1024 * 1024
"""Limit for one attempt: two rounds of 8192 nodes whose ranks were all reported. Beyond it, the
oldest batches are dropped."""


@dataclass(slots=True)
class Arrivals:
    """The batches of one attempt that have arrived."""

    unclaimed: set[int] = field(default_factory=set)
    """Ranks whose dumps arrived before any report of them."""
    size: int = 0
    """Bytes of memory, an upper estimate."""
    _batches: dict[str, frozenset[int]] = field(default_factory=dict)
    """By batch id: the ranks that were not known when the batch arrived."""

    def left_of(self, batch_id: str) -> frozenset[int] | None:
        """Return the ranks for which a batch is still new; None for a batch not seen before."""
        return self._batches.get(batch_id)

    def note(self, batch_id: str, unclaimed: set[int]) -> None:
        """Record a batch, and its ranks that are not known."""
        if batch_id in self._batches:
            self._forget(batch_id)
        new = unclaimed - self.unclaimed
        self.unclaimed |= new
        self._batches[batch_id] = frozenset(unclaimed)
        self.size += _size_of(batch_id, unclaimed) + UNCLAIMED_BYTES * len(new)
        while self.size > MAX_ARRIVALS_BYTES and self._batches:
            self._forget(next(iter(self._batches)))
        if self.size > MAX_ARRIVALS_BYTES:
            self.clear()

    def claim(self, rank: int) -> bool:
        """Record that a rank was reported; True if dumps of it arrived before."""
        if rank not in self.unclaimed:
            return False
        self.unclaimed.discard(rank)
        self.size -= UNCLAIMED_BYTES
        return True

    def clear(self) -> None:
        """Drop all records."""
        self._batches.clear()
        self.unclaimed.clear()
        self.size = 0

    def _forget(self, batch_id: str) -> None:
        self.size -= _size_of(batch_id, self._batches.pop(batch_id))


def _size_of(batch_id: str, unclaimed: set[int] | frozenset[int]) -> int:
    return BATCH_BYTES + CHARACTER_BYTES * len(batch_id) + UNCLAIMED_BYTES * len(unclaimed)


@dataclass(slots=True)
class Checkpoints:
    """Checkpoints that a rank has left, and the last one that all ranks have left."""

    _left: int | None = None
    """Highest step at which a rank left a checkpoint."""
    _complete: int | None = None
    usual: int = 0
    """Most steps from one checkpoint to the next; 0 before the second one."""

    def note(self, before: Beat | None, beat: Beat | None) -> None:
        """Compare two beats of a rank that follow each other."""
        if before is None or beat is None or not _is_saving(before) or _is_saving(beat):
            return
        if beat.exception_type:
            return  # the exception may have ended the checkpoint
        if self._left is None:
            self._left = before.step
        self.usual = max(self.usual, before.step - self._left)
        self._left = max(self._left, before.step)

    def find_last(self, beats: Iterable[Beat | None]) -> int | None:
        """Return the step of the last complete checkpoint; None if none is known.

        `beats` are the current ones of all ranks. A checkpoint is complete if no rank is in it.
        """
        left = self._left
        if left is not None and not any(
            beat is not None and _is_saving(beat) and beat.step <= left for beat in beats
        ):
            self._complete = left
        return self._complete


def _is_saving(beat: Beat) -> bool:
    return bool(beat.phase) and CHECKPOINT in beat.phase.lower()


MIN_MISSING = 256
MISSING_PER_RANK = 4
MAX_MISSING = 4096
"""Missing ranks are listed one by one: `MISSING_PER_RANK` of them per rank seen, but at least
`MIN_MISSING` and at most `MAX_MISSING`. The world size that a job reports may be wrong, and must
not cost time or memory."""


def list_missing(world_size: int, seen: Collection[int]) -> tuple[int, ...]:
    """Return the lowest ranks that were not seen; see `MAX_MISSING` for how many."""
    limit = min(MAX_MISSING, max(MIN_MISSING, MISSING_PER_RANK * len(seen)))
    return tuple(islice((rank for rank in range(world_size) if rank not in seen), limit))


MAX_RIVALS = 1024
"""Most rivals of one attempt: the number of processes of one node. A real job has fewer."""

RIVAL_MEMORY_S = 60.0
"""A rival is dropped when it was not reported for this many seconds."""

MAX_PHASES = 32
"""Most phases with step times of their own. A program may number its phases, which must not fill
the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAttempt:
    """The part of an attempt that is stored, so that a restarted tower recognizes it."""

    number: int
    typical_step_s: float = 0.0
    processes: frozenset[ProcessKey] = frozenset()
    """Empty for a job that was dropped: its next processes are a new attempt."""
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierAttempt:
    """What is kept of the attempt before, to compare with the present one."""

    number: int
    step: int
    """The last step that all its ranks had made; -1 before the first."""
    checkpoint_step: int | None
    world_size: int
    configuration: str
    """Digest of the configuration of its lowest rank."""


@dataclass(slots=True)
class Attempt:
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
    launchers: Launchers = field(default_factory=Launchers)
    """Launchers that wait for other nodes. They count while it has no ranks."""
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    resumed_at: float = float("-inf")
    """When the job last resumed after a suspension. Ages count from this time."""
    before: EarlierAttempt | None = None
    """The attempt before this one, if this run of the tower has seen it."""
    first_step: int | None = None
    """The first step that was reported; None before the first."""
    bad_losses: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Ranks whose last loss is NaN or infinite: the first such step that was reported, and when."""

    @property
    def world_size(self) -> int:
        """Number of ranks that the job reports, but at least the highest rank seen plus one."""
        claimed = max((r.vitals.world_size or 0 for r in self.ranks.values()), default=0)
        return max(claimed, max(self.ranks, default=-1) + 1)

    def set_up_by(self, policy: Policy) -> float:
        """Return when set-up has taken too long.

        Ranks may come one after the other, and set-up begins with the last one. Connections of many
        ranks take long. Only ranks that were seen count: a job may claim any world size.
        """
        came_at = max((r.first_seen_at for r in self.ranks.values()), default=self.began_at)
        since = max(self.began_at, self.resumed_at, came_at)
        return since + policy.startup_grace_s + policy.startup_rank_s * len(self.ranks)

    @property
    def checkpoint_step(self) -> int | None:
        """Step of the last complete checkpoint; None if none is known."""
        return self.checkpoints.find_last(r.vitals.beat for r in self.ranks.values())

    def missing_ranks(self) -> tuple[int, ...]:
        """Return the ranks that were never reported, in order; see `MAX_MISSING` for the limit."""
        return list_missing(self.world_size, self.ranks)

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

    def take_vitals(
        self, record: RankRecord, vitals: RankVitals, reporter: Reporter, policy: Policy
    ) -> None:
        """Record what an agent reports of a rank now. All of a fleet's ranks come here each second:
        what a report cannot change is not computed."""
        before, now = record.vitals, reporter.seen_at
        if before.state is ProcessState.STOPPED is not vitals.state and all(
            other.vitals.state is ProcessState.STOPPED for other in self.live()
        ):
            self.resumed_at = now  # this is the first rank to run after the whole job was suspended
        last, beat = before.beat, vitals.beat
        if beat is not None:
            if beat.advanced > 0 and last is not None and last is not beat:
                self._note_steps(record, last, beat, reporter)
            self._note_course(vitals.rank, beat, now)
            if beat.phase or (last is not None and last.phase):
                record.phase_changed_at = phase_changed_at(record, vitals, now)
                self.checkpoints.note(last, beat)
        is_new = beat is None or beat.age_s < now - record.seen_at
        record.outside_s = 0.0 if is_new else outside_s(record, vitals, now)
        self.note_vitals(record, vitals)
        record.seen_at = now
        record.reporter = reporter
        movement, ended = vitals.movement, vitals.ended
        if movement.cpu_cores >= policy.moving_cpu_cores:
            record.computed_at = now
        if moves_data(movement):
            record.moved_data_at = now
        if ended is None:
            record.ended_at = None
        else:
            # A delayed report makes a death seem later than it was, never earlier.
            ended_at = now - ended.age_s
            record.ended_at = min(ended_at, record.ended_at or ended_at)

    def _note_course(self, rank: int, beat: Beat, now: float) -> None:
        """Note where the steps begin, and which losses are bad."""
        if self.first_step is None and beat.step >= 0:
            self.first_step = beat.step
        if beat.loss_is_bad:
            self.bad_losses.setdefault(rank, (beat.step, now))
        elif self.bad_losses:
            self.bad_losses.pop(rank, None)

    def _note_steps(self, record: RankRecord, last: Beat, beat: Beat, reporter: Reporter) -> None:
        """Add the seconds per step since the previous report of a rank, which had the beat `last`.

        The process itself writes the times that its agent reads. Therefore they are limited to the
        time since that beat.
        """
        # One interval more, because the previous report may have been delayed by that.
        passed_s = last.age_s + reporter.seen_at - record.seen_at + reporter.interval_s
        interval_s = min(beat.interval_s, passed_s / beat.advanced)
        if interval_s > 0:
            # A step belongs to a phase only if the phase began before the step.
            inside = beat.phase and beat.phase_age_s > beat.age_s + interval_s
            self.pace(beat.phase if inside else "").note(interval_s)

    def note_vitals(self, record: RankRecord, vitals: RankVitals) -> None:
        """Set the latest vitals of a record of this attempt, and count their texts."""
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
        body = DumpBody(sent.body)
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
        """Return the dumps of a batch that belong to processes of this attempt."""
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

    @property
    def configuration(self) -> str:
        """Digest of the configuration of its lowest rank; empty if it is not known."""
        first = self.ranks.get(min(self.ranks, default=0))
        return first.vitals.configuration if first is not None else ""

    def follow(self, now: float) -> Attempt:
        """Return the next attempt, which begins now."""
        before = EarlierAttempt(
            number=self.number,
            step=self.step(),
            checkpoint_step=self.checkpoint_step,
            world_size=self.world_size,
            configuration=self.configuration,
        )
        return Attempt(self.job, self.number + 1, now, before=before)

    def remember(self, owner: str) -> PastAttempt:
        """Return the data by which a restarted tower recognizes this attempt."""
        return PastAttempt(
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
