"""When to dump unasked, and which orders to carry out. Decided by value, `now` is an argument."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agent.discovery.found_rank import JobKey
from agent.dumping.dump_slots import DumpSlots
from watchtower.fair_places import has_share
from watchtower.wire.orders import MAX_ORDERS, Deadline, Order

DUMP_EXPIRES_S = 60.0
"""A dump that has not said by then that it is over is over: two rounds take half of it."""

SATISFIED_BY_S = 3.0
"""An order is satisfied by a dump of that job that ended less than this ago."""

REPEAT_DUMP_S = 30.0
"""The earliest a rank that stays overdue makes the agent dump again; doubles each time."""

MAX_REPEAT_DUMP_S = 480.0

MAX_DUMPS_PER_MINUTE = 6
"""Of one job, whoever asks: a hang needs two or three, and a deadline of 0 s must not cost more."""

MAX_JITTER_S = 10.0
"""An agent delays a dump by no more than this, whatever jitter the tower asks for."""

MAX_SAMPLES_PER_MINUTE = 60
"""Of one job; a tower asks for two, and for one a second where its settings say so."""

REMEMBERED_ORDERS = 1024
"""Ids of orders already carried out."""

UNKNOWN_RANKS_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBeat:
    """The last beat of one living process; times are monotonic seconds."""

    key: tuple[int, int]
    job: JobKey
    rank: int
    phase: str
    beaten_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fired:
    """A dump was asked for by this rank since that beat."""

    beaten_at: float
    again_at: float
    gap_s: float


class DeadlineWatch:
    """Knows each rank's deadline and whether it was acted on already: once per stall."""

    def __init__(self, jitter_share: float = 0.0) -> None:
        """Of the jitter that the tower asks for, this agent waits `jitter_share`, between 0
        and 1."""
        self._jitter_share = jitter_share
        self._deadlines: dict[tuple[JobKey, int], Deadline] = {}
        self._fired: dict[tuple[int, int], _Fired] = {}

    def replace(self, deadlines: Iterable[Deadline]) -> None:
        """Take over the tower's newest deadlines; they hold while the tower is away too."""
        self._deadlines = {(JobKey(each.job, each.owner), each.rank): each for each in deadlines}

    def due_at(self, beat: RankBeat) -> float | None:
        """Return when this rank is overdue; None without a deadline for the phase it is in."""
        deadline = self._deadlines.get((beat.job, beat.rank))
        deadline = deadline or self._deadlines.get((JobKey(beat.job.name), beat.rank))
        if deadline is None or deadline.phase != beat.phase:
            return None
        due = beat.beaten_at + deadline.after_s + jitter_of(deadline, self._jitter_share)
        fired = self._fired.get(beat.key)
        if fired is not None and fired.beaten_at == beat.beaten_at:
            return max(due, fired.again_at)
        return due

    def next_due(self, beats: Iterable[RankBeat]) -> float | None:
        """Return when the first of them is overdue."""
        return min((due for beat in beats if (due := self.due_at(beat)) is not None), default=None)

    def fire(
        self, beats: Iterable[RankBeat], now: float, slots: DumpSlots
    ) -> dict[JobKey, RankBeat]:
        """Return the jobs to dump now, each with a rank that is the reason.

        Jobs without a slot stay due: a node whose jobs all lose one file system dumps them by
        turns.
        """
        overdue = [beat for beat in beats if (due := self.due_at(beat)) is not None and due <= now]
        jobs = dict.fromkeys(beat.job for beat in overdue)
        chosen = set(slots.choose((job.owner, job) for job in jobs))
        fired: dict[JobKey, RankBeat] = {}
        for beat in overdue:
            if beat.job in chosen:
                fired.setdefault(beat.job, beat)
                self._fired[beat.key] = self._note(beat, now)
        return fired

    def keep_only(self, keys: set[tuple[int, int]]) -> None:
        """Forget processes that are gone."""
        self._fired = {key: fired for key, fired in self._fired.items() if key in keys}

    def _note(self, beat: RankBeat, now: float) -> _Fired:
        before = self._fired.get(beat.key)
        again = before is not None and before.beaten_at == beat.beaten_at
        gap_s = min(before.gap_s * 2, MAX_REPEAT_DUMP_S) if before and again else REPEAT_DUMP_S
        return _Fired(beaten_at=beat.beaten_at, again_at=now + gap_s, gap_s=gap_s)


class DumpLedger:
    """Which jobs are being dumped, and when they last were: who asks again meanwhile is served.

    Nobody, not even the tower, has a job dumped without end.
    """

    def __init__(self, per_minute: int = MAX_DUMPS_PER_MINUTE) -> None:
        self._per_minute = per_minute
        self._running: dict[JobKey, float] = {}
        self._ended_at: dict[JobKey, float] = {}
        self._began_at: dict[JobKey, list[float]] = {}

    def begin(self, job: JobKey, now: float) -> None:
        """Note that a dump of the job began."""
        self._running[job] = now
        recent = {name: _within_a_minute(times, now) for name, times in self._began_at.items()}
        self._began_at = {name: times for name, times in recent.items() if times}
        self._began_at.setdefault(job, []).append(now)

    def is_exhausted(self, job: JobKey, now: float) -> bool:
        """Say whether the job was dumped as often in the last minute as it ever may be."""
        return len(_within_a_minute(self._began_at.get(job, []), now)) >= self._per_minute

    def end(self, job: JobKey, now: float) -> None:
        """Note that it ended."""
        self._running.pop(job, None)
        recent = {job: at for job, at in self._ended_at.items() if now - at < SATISFIED_BY_S}
        self._ended_at = {**recent, job: now}

    def running(self, now: float) -> list[JobKey]:
        """Return the jobs that are being dumped now."""
        return [job for job in self._running if self.is_running(job, now)]

    def satisfies(self, job: JobKey, now: float) -> bool:
        """Say whether a dump of the job is under way or just ended."""
        ended_at = self._ended_at.get(job)
        just_ended = ended_at is not None and now - ended_at < SATISFIED_BY_S
        return just_ended or self.is_running(job, now)

    def is_running(self, job: JobKey, now: float) -> bool:
        """One that hangs for ever is over too, so that the job can be dumped again."""
        return now - self._running.get(job, float("-inf")) < DUMP_EXPIRES_S


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An order and the times between which it is carried out."""

    order: Order
    from_at: float
    until: float


class OrderInbox:
    """Orders that wait to be carried out; each id once, none after its expiry. Owners share the
    room."""

    def __init__(self, jitter_share: float = 0.0) -> None:
        """Of the jitter that the tower asks for, this agent waits `jitter_share`, between 0
        and 1."""
        self._jitter_share = jitter_share
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._waiting: list[_Waiting] = []

    def receive(self, orders: Iterable[Order], now: float) -> list[Order]:
        """Take in orders that came with a reply; return those for which there is no room."""
        refused = []
        for order in orders:
            if order.id in self._seen:
                continue
            self._seen[order.id] = None
            held = Counter(each.order.owner for each in self._waiting)
            if has_share(held, order.owner, MAX_ORDERS):
                from_at = now + jitter_of(order, self._jitter_share)
                self._waiting.append(_Waiting(order, from_at, from_at + order.expires_s))
            else:
                refused.append(order)
        while len(self._seen) > REMEMBERED_ORDERS:
            self._seen.popitem(last=False)
        return refused

    def take(self, now: float, slots: DumpSlots) -> tuple[list[Order], list[Order]]:
        """Return the orders to carry out now, and those that expired while waiting."""
        expired = [each.order for each in self._waiting if each.until <= now]
        valid = {each.order.id: each for each in self._waiting if each.until > now}
        due = [each.order for each in valid.values() if each.from_at <= now]
        chosen = slots.choose((order.owner, order) for order in due)
        for order in chosen:
            del valid[order.id]
        self._waiting = list(valid.values())
        return chosen, expired

    def next_due(self, slots: DumpSlots) -> float | None:
        """Return when the first of those may be carried out for which there is room."""
        waiting = [each.from_at for each in self._waiting if slots.has_room(each.order.owner)]
        return min(waiting, default=None)


def jitter_of(asked: Deadline | Order, share: float) -> float:
    """Return the seconds that an agent waits, so that not all nodes of a job dump at once."""
    return share * min(asked.jitter_s, MAX_JITTER_S)


def _within_a_minute(times: list[float], now: float) -> list[float]:
    return [at for at in times if now - at < 60]


def jobs_meant(order: Order, known_ranks: Mapping[JobKey, set[int]]) -> list[JobKey]:
    """Return the jobs that an order is about: one, or all of a name if no owner is given."""
    return [job for job in known_ranks if job.is_meant_by(order.job, order.owner)]


def refuse(order: Order, known_ranks: Mapping[JobKey, set[int]]) -> str:
    """Return why an order may not be carried out; empty when it may.

    The agent only ever dumps processes that it found to be ranks itself.
    """
    jobs = jobs_meant(order, known_ranks)
    if not jobs:
        return f"no rank of job {order.job!r} was found on this node"
    ranks = set[int]().union(*(known_ranks[job] for job in jobs))
    if unknown := sorted(set(order.ranks) - ranks):
        shown = ", ".join(map(str, unknown[:UNKNOWN_RANKS_SHOWN]))
        more = " and more" if len(unknown) > UNKNOWN_RANKS_SHOWN else ""
        return f"ranks {shown}{more} of job {order.job!r} were not found on this node"
    return ""
