"""Decides when to dump without an order, and which orders to carry out. Pure: `now` and what is
drawn by lot are arguments.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from agent.dumps.turns import DumpSlots
from agent.ranks.found_rank import JobKey, RankBeat
from watchtower.service.sharing import has_share
from watchtower.wire.orders import MAX_DUMPS_PER_MINUTE, MAX_ORDERS, Deadline, Order

DUMP_EXPIRES_S = 60.0
"""A dump without a reported end counts as over after this time. Two rounds take half of it."""

SATISFIED_BY_S = 3.0
"""An order is satisfied by a dump of its job that ended less than this ago."""

REPEAT_DUMP_S = 30.0
"""Seconds until a rank that stays overdue makes the agent dump again. They double each time."""

MAX_REPEAT_DUMP_S = 480.0
"""A rank that hangs for hours is still dumped now and then, because its state may change."""

ROUND_GAP_S = 1.0
"""Seconds between the two rounds, at least. Equal stacks one second apart mean stuck, not slow."""

ROUND_GAP_JITTERS = 2.0
"""The gap between the two rounds is at least this many times the jitter. With one, the second round
of the first nodes came with the first round of the last ones, and the first verdict on a hang of
16,384 ranks was published 6.7 to 8.1 s after suspicion instead of 2.5 to 3.8 s."""

MAX_JITTER_S = 10.0
"""The longest delay of a dump, whatever jitter the tower asks for."""

MAX_SAMPLES_PER_MINUTE = 60
"""Stack samples of one job per minute. A tower asks for two; with some settings, for one a
second.
"""

REMEMBERED_ORDERS = 1024
"""Ids of received orders that are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fired:
    """A dump that this rank caused after that heartbeat."""

    beat_at: float
    again_at: float
    gap_s: float


class DeadlineWatch:
    """Holds each rank's deadline and whether it already caused a dump: once per stall."""

    def __init__(self, jitter_share: float = 0.0) -> None:
        """This agent waits the share `jitter_share` (0 to 1) of the jitter that the tower asks
        for.
        """
        self._jitter_share = jitter_share
        self._deadlines: dict[tuple[JobKey, int], Deadline] = {}
        self._fired: dict[tuple[int, int], _Fired] = {}

    def replace(self, deadlines: Iterable[Deadline]) -> None:
        """Replace the deadlines by the tower's newest ones. They stay valid while the tower is
        away.
        """
        self._deadlines = {(JobKey.named_by(each), each.rank): each for each in deadlines}

    def find(self, beat: RankBeat) -> Deadline | None:
        """Return the deadline of this rank in its current phase."""
        deadline = self._deadlines.get((beat.job, beat.rank))
        return deadline if deadline is not None and deadline.phase == beat.phase else None

    def due_at(self, beat: RankBeat) -> float | None:
        """Return when this rank is overdue. None without a deadline for its current phase."""
        deadline = self.find(beat)
        if deadline is None:
            return None
        due = beat.beat_at + deadline.after_s + jitter_of(deadline, self._jitter_share)
        fired = self._fired.get(beat.key)
        if fired is not None and fired.beat_at == beat.beat_at:
            return max(due, fired.again_at)
        return due

    def next_due(self, beats: Iterable[RankBeat]) -> float | None:
        """Return when the first of these ranks is overdue; None if none will be."""
        return min((due for beat in beats if (due := self.due_at(beat)) is not None), default=None)

    def fire(
        self, beats: Iterable[RankBeat], now: float, slots: DumpSlots
    ) -> dict[JobKey, RankBeat]:
        """Return the jobs to dump now, each with the rank that is the reason.

        Jobs without a slot stay due. If all jobs of a node lose one file system, they are dumped in
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
        """Forget all processes but those of `keys`."""
        self._fired = {key: fired for key, fired in self._fired.items() if key in keys}

    def _note(self, beat: RankBeat, now: float) -> _Fired:
        before = self._fired.get(beat.key)
        again = before is not None and before.beat_at == beat.beat_at
        gap_s = min(before.gap_s * 2, MAX_REPEAT_DUMP_S) if before and again else REPEAT_DUMP_S
        return _Fired(beat_at=beat.beat_at, again_at=now + gap_s, gap_s=gap_s)


class DumpLedger:
    """Records which jobs are dumped now and when each last dump ended.

    A second request during or shortly after a dump is satisfied by it. The number of dumps of a job
    per minute is limited, also for orders of the tower.
    """

    def __init__(self, per_minute: int = MAX_DUMPS_PER_MINUTE) -> None:
        self._per_minute = per_minute
        self._running: dict[JobKey, float] = {}
        self._ended_at: dict[JobKey, float] = {}
        self._began_at: dict[JobKey, list[float]] = {}

    def begin(self, job: JobKey, now: float) -> None:
        """Record that a dump of the job started."""
        self._running[job] = now
        recent = {name: _within_a_minute(times, now) for name, times in self._began_at.items()}
        self._began_at = {name: times for name, times in recent.items() if times}
        self._began_at.setdefault(job, []).append(now)

    def is_exhausted(self, job: JobKey, now: float) -> bool:
        """Return whether the job has reached its limit of dumps per minute."""
        return len(_within_a_minute(self._began_at.get(job, []), now)) >= self._per_minute

    def end(self, job: JobKey, now: float) -> None:
        """Record that a dump of the job ended."""
        self._running.pop(job, None)
        recent = {job: at for job, at in self._ended_at.items() if now - at < SATISFIED_BY_S}
        self._ended_at = {**recent, job: now}

    def running(self, now: float) -> list[JobKey]:
        """Return the jobs that are being dumped now."""
        return [job for job in self._running if self.is_running(job, now)]

    def satisfies(self, job: JobKey, now: float) -> bool:
        """Return whether a dump of the job is running or has just ended."""
        ended_at = self._ended_at.get(job)
        just_ended = ended_at is not None and now - ended_at < SATISFIED_BY_S
        return just_ended or self.is_running(job, now)

    def is_running(self, job: JobKey, now: float) -> bool:
        """Return whether a dump of the job is running.

        A dump that hangs counts as over after DUMP_EXPIRES_S, so that the job can be dumped again.
        """
        return now - self._running.get(job, float("-inf")) < DUMP_EXPIRES_S


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An order, and the times between which it is carried out."""

    order: Order
    from_at: float
    until: float


class OrderInbox:
    """Orders that wait to be carried out: each id once, and none after its expiry. Owners share the
    MAX_ORDERS places.
    """

    def __init__(self, draw_share: Callable[[], float] = random.random) -> None:
        """For each order the agent waits another share (0 to 1) of the jitter that the tower asks
        for: dumps at equal distances would all show the same moment of a step.
        """
        self._draw_share = draw_share
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._waiting: list[_Waiting] = []

    def receive(self, orders: Iterable[Order], now: float) -> list[Order]:
        """Add the orders of a reply; return those that were refused because the inbox is full."""
        refused = []
        for order in orders:
            if order.id in self._seen:
                continue
            self._seen[order.id] = None
            held = Counter(each.order.owner for each in self._waiting)
            if has_share(held, order.owner, MAX_ORDERS):
                from_at = now + jitter_of(order, self._draw_share())
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
        """Return when the next order of an owner with a free slot may be carried out."""
        waiting = [each.from_at for each in self._waiting if slots.has_room(each.order.owner)]
        return min(waiting, default=None)


def jitter_of(asked: Deadline | Order, share: float) -> float:
    """Return the seconds that an agent waits, so that the nodes of a job do not all dump at
    once.
    """
    return share * min(asked.jitter_s, MAX_JITTER_S)


def round_gap_s(asked: Deadline | Order | None) -> float:
    """Return the seconds between the two rounds of a dump.

    A second round of some nodes does not delay the first round of others: the first verdict of a
    large job needs only the first round.
    """
    jitter_s = min(asked.jitter_s, MAX_JITTER_S) if asked else 0.0
    return max(ROUND_GAP_S, ROUND_GAP_JITTERS * jitter_s)


def _within_a_minute(times: list[float], now: float) -> list[float]:
    return [at for at in times if now - at < 60]
