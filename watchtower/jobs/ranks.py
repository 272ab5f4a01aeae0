"""The ranks of a job as last reported: their processes, launches, phases and dumps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from watchtower.wire.orders import Deadline
from watchtower.wire.report import (
    EXIT_PHASE,
    Ending,
    EndingKind,
    RankVitals,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporter:
    """One agent at its last report. The ranks of that report share this value."""

    agent_id: str
    boot: str
    """Boot of the node's kernel; empty from an agent that cannot read it."""
    contained: bool
    """Whether the agent sees only the processes of its own container."""
    seen_at: float
    interval_s: float
    held_until: float
    """Until this time, no other agent with the same node name may report its ranks."""
    silent_from: float
    """From this time, the agent counts as silent. Until then, no agent of another boot may report
    its ranks."""

    def may_be_followed_by(self, other: Reporter) -> bool:
        """Return whether `other` may be this agent, or a later one on the same node."""
        return not self.boot or self.boot == other.boot

    def holds_against(self, other: Reporter, now: float) -> bool:
        """Return whether the ranks of this agent still belong to it, and `other` is not it."""
        if other.agent_id == self.agent_id:
            return False
        return now < (self.held_until if self.may_be_followed_by(other) else self.silent_from)


RANK_BYTES = 2048
"""A rank's record with its vitals, and the stack sample of a rank without heartbeats."""

STILL_AFTER_S = 3.0
"""Ranks count as still after this many seconds without movement: three reports in a row."""

CHARACTER_BYTES = 4
"""The most that one character of a Python string needs."""

USUAL_CHARACTERS = 256
"""Texts of one rank up to this length are part of `RANK_BYTES`."""

SHORT_PHASE = 32
"""Number of characters that remain of a phase when texts are shortened."""


def count_text(vitals: RankVitals) -> int:
    """Return the bytes of the texts of one rank; 0 if they are as short as usual."""
    count = len(vitals.job) + len(vitals.owner) + len(vitals.launch) + len(vitals.wchan)
    beat, ended = vitals.beat, vitals.ended
    if beat is not None:
        count += len(beat.phase) + len(beat.exception_type) + len(beat.exception_text)
    if ended is not None:
        count += len(ended.exception_type) + len(ended.exception_text)
    return 0 if count <= USUAL_CHARACTERS else CHARACTER_BYTES * count


def shorten(vitals: RankVitals) -> RankVitals:
    """Return vitals without their longest texts: exceptions, kernel functions, ends of phases."""
    beat, ended = vitals.beat, vitals.ended
    if beat is not None:
        phase = beat.phase[:SHORT_PHASE]
        beat = replace(beat, phase=phase, exception_type="", exception_text="")
    if ended is not None:
        ended = replace(ended, exception_type="", exception_text="")
    return replace(vitals, wchan="", beat=beat, ended=ended)


def share_names(vitals: RankVitals, known: RankVitals) -> RankVitals:
    """Return vitals that share the strings of equal names with another rank of the job.

    Each message contains its own copy of a name. With this, all ranks of a job use one copy.
    """
    job = known.job if known.job == vitals.job else vitals.job
    owner = known.owner if known.owner == vitals.owner else vitals.owner
    return replace(vitals, job=job, owner=owner)


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


@dataclass(slots=True)
class RankRecord:
    """One rank of one attempt, as last reported."""

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


def has_died(record: RankRecord) -> bool:
    """Return whether a rank did not end normally, or it is not known how it ended.

    A heartbeat page with "finished" is a normal end even if the kernel reports no exit code.
    """
    ended = record.vitals.ended
    return ended is not None and not (ended.kind is EndingKind.EXIT and ended.code in (0, None))


def phase_changed_at(record: RankRecord, vitals: RankVitals, now: float) -> float:
    """Return when a rank last entered or left a phase, by its record and its new report."""
    before, beat, changed_at = record.vitals.beat, vitals.beat, record.phase_changed_at
    if beat is None:
        return changed_at
    if beat.phase:
        changed_at = max(changed_at, now - beat.phase_age_s)
    has_changed = before is not None and before.phase != beat.phase
    # A report says when the present phase began, not when the one before it ended.
    return now if has_changed and changed_at <= record.seen_at else changed_at


def outside_s(record: RankRecord, vitals: RankVitals, now: float) -> float:
    """Return the seconds of a rank outside phases since its heartbeat, with those of its report."""
    before, beat, passed_s = record.vitals.beat, vitals.beat, now - record.seen_at
    if before is None or beat is None or beat.age_s < passed_s:
        return 0.0  # it had no heartbeat before, or has one that is newer than the previous report
    return record.outside_s + (0.0 if before.phase or beat.phase else passed_s)


def is_exiting(record: RankRecord) -> bool:
    """Return whether a rank's program has finished, and its process is shutting down."""
    beat = record.vitals.beat
    return beat is not None and beat.phase == EXIT_PHASE
