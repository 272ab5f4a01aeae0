"""A generation: one life of a job, its ranks as last reported and what was dumped of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from watchtower.core.fleet.arrivals import Arrivals
from watchtower.core.fleet.pace import Pace
from watchtower.core.fleet.sizes import count_gaps, count_text, share_names, shorten
from watchtower.wire.dumps import DumpBatch, RankDump, SentBatch
from watchtower.wire.report import AgentGaps, EndingKind, RankVitals, Report, lowest_step

MIN_MISSING = 256
MISSING_PER_RANK = 4
MAX_MISSING = 4096
"""Ranks that never came, named one by one: as many as there is a point in naming beside those that
did come. What a job says of its size may be garbage, and must not cost time or memory."""

MAX_RIVALS = 1024
"""Rivals of a generation remembered: the processes of one node; whoever needs more is lying."""

RIVAL_MEMORY_S = 60.0
"""A rival that was not reported for so long is forgotten."""

MAX_PHASES = 32
"""Phases with a pace of their own; a program that numbers its phases does not fill the memory."""

HOLD_S, HOLD_INTERVALS = 3.0, 1.5
"""So long, or so many intervals, after an agent's last report, no other agent of that node's name
has its ranks. An agent that was restarted has them after that."""


class ProcessKey(NamedTuple):
    """What tells one process from another, through pid reuse too."""

    node: str
    pid: int
    start_time: int


@dataclass(slots=True, eq=False)
class DumpBody:
    """The body of one batch of dumps. All ranks of the batch share it."""

    body: bytes
    holders: int = 0
    """Ranks that have it among their last two dumps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastGeneration:
    """What is worth remembering of a generation, so that a restarted tower knows it again."""

    number: int
    typical_step_s: float = 0.0
    processes: frozenset[ProcessKey] = frozenset()
    """Empty for a job that was forgotten: whatever comes next is a new generation."""
    owner: str = ""


@dataclass(slots=True)
class RankRecord:
    """One rank of one generation, as last reported."""

    key: ProcessKey
    vitals: RankVitals
    seen_at: float
    first_seen_at: float
    moved_at: float
    """When its process tree was last seen to use CPU or storage."""
    ended_at: float | None = None
    reporter: str = ""
    """Agent that reported it last."""
    held_until: float = float("-inf")
    """Until then no other agent may report it, under the same node's name."""
    missing_since: float | None = None
    """When its node first reported without it."""
    dumps: list[tuple[float, DumpBody]] = field(default_factory=list)
    """When the last two dumps were taken, oldest first, and the bodies that hold them."""
    text_bytes: int = 0
    """Bytes of its texts, 0 if they are short."""

    def copy(self) -> RankRecord:
        """Copy it; everything in it is replaced as a whole and never changed."""
        # By place: `dataclasses.replace` takes ten times as long, and a job has thousands of ranks.
        return RankRecord(
            self.key,
            self.vitals,
            self.seen_at,
            self.first_seen_at,
            self.moved_at,
            self.ended_at,
            self.reporter,
            self.held_until,
            self.missing_since,
            self.dumps,
            self.text_bytes,
        )

    @property
    def is_live(self) -> bool:
        """Whether the process was there when last reported."""
        return self.ended_at is None

    def age_s(self, now: float, interval_s: float) -> float:
        """Seconds since the last beat. Grows between reports, but only for two of them: a late
        report must not make a rank seem late."""
        beat = self.vitals.beat
        return 0.0 if beat is None else beat.age_s + min(now - self.seen_at, 2 * interval_s)


@dataclass(slots=True)
class NodeRecord:
    """One node's agent."""

    agent_id: str
    seen_at: float
    interval_s: float
    gaps: AgentGaps
    hold_s: float = 0.0
    """How long after its last report this agent's ranks are no other agent's."""
    shared_at: float = float("-inf")
    """When two agents were last seen to report under this name by turns."""
    previous_agent: str = ""
    ranks: set[tuple[str, int]] = field(default_factory=set)
    """(job, rank) of the ranks on it that it reports, or stopped to report only just now."""

    @classmethod
    def of(cls, report: Report, now: float, silence_s: float) -> NodeRecord:
        """Make the record of a node that has just reported."""
        hold_s = min(max(HOLD_S, HOLD_INTERVALS * report.interval_s), silence_s)
        return cls(report.agent_id, now, report.interval_s, report.limits, hold_s)

    def compare_agents(self, previous: NodeRecord, now: float) -> None:
        """Notice two agents that report under one name; one that was restarted never comes back."""
        self.previous_agent, self.shared_at = previous.previous_agent, previous.shared_at
        if self.agent_id != previous.agent_id:
            if self.agent_id == previous.previous_agent:
                self.shared_at = now
            self.previous_agent = previous.agent_id

    @property
    def droppable_bytes(self) -> int:
        """Bytes of what the agent says of itself."""
        return count_gaps(self.gaps)

    def drop(self, excess: int) -> None:
        """Forget what the agent says of itself, until it says it again."""
        self.gaps = AgentGaps()


@dataclass(slots=True)
class Generation:
    """One life of a job: the ranks between two restarts."""

    job: str
    number: int
    began_at: float
    ranks: dict[int, RankRecord] = field(default_factory=dict)
    rivals: dict[ProcessKey, tuple[RankVitals, float]] = field(default_factory=dict)
    """Second processes that claim a taken rank, and when they were last reported."""
    paces: dict[str, Pace] = field(default_factory=dict)
    dumps_bytes: int = 0
    """Bytes of all bodies that the dumps of its ranks are in."""
    text_bytes: int = 0
    """Bytes of the texts of its ranks that are longer than usual."""
    arrivals: Arrivals = field(default_factory=Arrivals)
    """Batches of dumps that came in."""
    known: frozenset[ProcessKey] = frozenset()
    """Its processes as the tower's last run knew them; empty for one that began in this run."""
    awaited: set[ProcessKey] = field(default_factory=set)
    """Those of `known` that were not reported again yet."""
    recalled_at: float = float("-inf")
    """When it was known again."""
    recall_wanted: bool = True
    """Dumps of its ranks may lie in the store: taken in the tower's last run, or before a rank of
    theirs was reported."""
    resumed_at: float = float("-inf")
    """When the job last came back from being suspended: ages count from there."""

    @property
    def world_size(self) -> int:
        """Ranks the job says it has, else the highest rank seen plus one."""
        said = max((r.vitals.world_size or 0 for r in self.ranks.values()), default=0)
        return max(said, max(self.ranks, default=-1) + 1)

    def missing_ranks(self) -> tuple[int, ...]:
        """The first ranks that never came, in order; of a job that hardly came not all."""
        limit = min(MAX_MISSING, max(MIN_MISSING, MISSING_PER_RANK * len(self.ranks)))
        missing = (rank for rank in range(self.world_size) if rank not in self.ranks)
        return tuple(islice(missing, limit))

    def pace(self, phase: str) -> Pace:
        """Step times in `phase`. Beyond `MAX_PHASES` names all others share the plain pace."""
        pace = self.paces.get(phase)
        if pace is not None:
            return pace
        if len(self.paces) >= MAX_PHASES and phase:
            return self.pace("")
        return self.paces.setdefault(phase, Pace())

    def end_tick(self) -> None:
        """Turn the step times of this tick into one sample of each phase."""
        for pace in self.paces.values():
            pace.end_tick()

    @property
    def is_paced(self) -> bool:
        """Whether enough steps were seen, in whatever phase, to know what is late."""
        return any(pace.is_learned for pace in self.paces.values())

    def note_rival(self, key: ProcessKey, vitals: RankVitals, seen_at: float) -> None:
        """Remember a second process of a rank, `MAX_RIVALS` of them, without long texts."""
        if key in self.rivals or len(self.rivals) < MAX_RIVALS:
            is_short = not count_text(vitals)
            self.rivals[key] = (vitals if is_short else self._share(shorten(vitals)), seen_at)

    def expire_rivals(self, now: float) -> None:
        """Forget rivals that are not reported any more."""
        old = [k for k, (_, seen_at) in self.rivals.items() if now - seen_at > RIVAL_MEMORY_S]
        for key in old:
            del self.rivals[key]

    def note_vitals(self, record: RankRecord, vitals: RankVitals) -> None:
        """Give a record of this generation its latest vitals, and count their texts."""
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
        """Attach the dumps of a batch to their ranks; returns those not attached before."""
        batch, body = sent.batch, DumpBody(sent.body)
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
        """Make this the record of its rank."""
        before = self.ranks.get(record.vitals.rank)
        if before is not None:
            self._release(before.dumps)
            self.text_bytes -= before.text_bytes
        self.ranks[record.vitals.rank] = record
        self.text_bytes += record.text_bytes

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
        """Drop bodies of dumps, the largest first, until `excess` bytes are free; ranks without
        others count as not dumped."""
        bodies = {body for record in self.ranks.values() for _, body in record.dumps}
        gone: set[DumpBody] = set()
        for body in sorted(bodies, key=lambda each: len(each.body), reverse=True):
            if excess <= 0:
                break
            gone.add(body)
            excess -= len(body.body)
        self.dumps_bytes -= sum(len(body.body) for body in gone)
        for record in self.ranks.values():
            # Another list: a diagnosis that was asked for before still has the old one.
            record.dumps = [item for item in record.dumps if item[1] not in gone]

    def drop_texts(self) -> None:
        """Shorten what its ranks say, until they say it again."""
        for record in self.ranks.values():
            if record.text_bytes:
                record.vitals, record.text_bytes = self._share(shorten(record.vitals)), 0
        self.text_bytes = 0

    def drop_paces(self) -> None:
        """Forget how long steps take in the marked phases."""
        self.paces = {"": self.pace("")}

    def own(self, batch: DumpBatch) -> list[RankDump]:
        """Choose the dumps of a batch that are of this generation's processes."""
        return [
            dump
            for dump in batch.ranks
            if (record := self.ranks.get(dump.rank)) is not None
            and record.key == ProcessKey(batch.node, dump.pid, dump.start_time)
        ]

    def is_returning(self, now: float, patience_s: float) -> bool:
        """Whether some of its processes may still be reported again after the tower's restart."""
        return bool(self.awaited) and now - self.recalled_at < patience_s

    def has_stepped_since(self, since: float) -> bool:
        """Whether every live rank that steps has beaten after `since`."""
        beats = [(r.seen_at, r.vitals.beat) for r in self.live()]
        last = [seen_at - beat.age_s for seen_at, beat in beats if beat and beat.step >= 0]
        return bool(last) and min(last) > since

    def last_beat_of_all(self) -> float | None:
        """When the live rank that beat longest ago did so; None without any page."""
        beats = [(r.seen_at, r.vitals.beat) for r in self.live()]
        return min((seen_at - beat.age_s for seen_at, beat in beats if beat), default=None)

    def remember(self, owner: str) -> PastGeneration:
        """Say what a later tower needs to know this generation of an owner's job again."""
        return PastGeneration(
            number=self.number,
            owner=owner,
            typical_step_s=self.pace("").typical_s,
            # Ranks come back one node after the other: those awaited must not be forgotten.
            processes=self.known.union(record.key for record in self.ranks.values()),
        )

    def live(self) -> Iterator[RankRecord]:
        """Ranks whose process is there."""
        return (record for record in self.ranks.values() if record.is_live)

    def step(self) -> int:
        """Return the lowest step that every rank with heartbeats has made, -1 before the first."""
        return lowest_step(record.vitals.beat for record in self.ranks.values())


def has_died(record: RankRecord) -> bool:
    """Whether a rank ended other than in good order, or nothing is known of its end.

    A page that says "finished" is good order also where the kernel does not tell the exit code.
    """
    ended = record.vitals.ended
    return ended is not None and not (ended.kind is EndingKind.EXIT and ended.code in (0, None))
