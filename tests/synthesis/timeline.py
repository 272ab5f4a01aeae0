"""The program with a clock: when every rank makes each of its calls, and when each is over.

Dumps of ranks are not taken at one moment. What a rank shows then follows from where its own thread
and its calls are at its own moment, so that records and stacks of a case fit together as in life.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.synthesis.layout import Layout
from tests.synthesis.program import Calls, Outcome, Place, Spoil, write_program

TRANSFER_S = 0.01
"""How long a call takes once everybody is there."""

AHEAD = 0.1
"""Share of the work that the thread does of a rank whose device does the rest."""

NEVER = math.inf

LONG_AFTER_S = 1e9
"""When whatever can be over is over."""

Work = Callable[[int, int], float]
"""Gives the seconds that a rank computes before its call of this index."""


@dataclass(frozen=True)
class Pace:
    """How threads and calls go along with each other."""

    runs_ahead: bool = False
    """A thread hands calls in and goes on; it waits only at the places below."""
    waits_at: tuple[str, ...] = ("recv",)
    """Operations that a thread which runs ahead waits for, besides the last call of a step."""


@dataclass
class Visit:
    """One call of a rank."""

    made: float
    over: float = NEVER
    waited: bool = True
    """Its thread goes on only when it is over."""


@dataclass
class Timeline:
    """All calls of all ranks that were ever made."""

    layout: Layout
    programs: list[Calls]
    visits: list[list[Visit]]
    usual: list[Calls] = field(default_factory=list)

    def place_at(self, rank: int, moment: float) -> Place:
        """Return where a rank is at this moment."""
        made = [visit for visit in self.visits[rank] if visit.made <= moment]
        inside = bool(made) and made[-1].waited and made[-1].over > moment
        return Place(
            at=len(made) - inside,
            inside=inside,
            done=len(made) - inside == len(self.programs[rank]),
            under_way=sum(visit.over > moment for visit in made),
        )

    @property
    def last_s(self) -> float:
        """When the last call was made that anybody made."""
        return max(visit.made for visits in self.visits for visit in visits[-1:])


def run(
    layout: Layout,
    *,
    spoil: Mapping[int, Spoil] | None = None,
    stops: Mapping[int, int] | None = None,
    cut_at: int | None = None,
    history: int = 40,
) -> Outcome:
    """Run one step until nothing moves any more; see `pass_time`."""
    line = pass_time(layout, lambda *_: 0.0, steps=1, spoil=spoil, stops=stops, cut_at=cut_at)
    places = [line.place_at(rank, LONG_AFTER_S) for rank in range(layout.size)]
    return Outcome(line.programs, places, history, line.usual)


def pass_time(
    layout: Layout,
    work: Work,
    *,
    steps: int = 4,
    pace: Pace | None = None,
    spoil: Mapping[int, Spoil] | None = None,
    stops: Mapping[int, int] | None = None,
    cut_at: int | None = None,
) -> Timeline:
    """Let a job make these steps of its program.

    `spoil` changes the calls of ranks, `stops` keeps a rank from making its call of that index,
    `cut_at` takes the network away: calls of that index and later ones never end.
    """
    usual = [write_program(layout, rank) for rank in range(layout.size)]
    programs = [calls * steps for calls in usual]
    for rank, change in (spoil or {}).items():
        programs[rank] = change(programs[rank])
    clock = _Clock(layout, programs, work, pace or Pace(), [len(calls) for calls in usual])
    clock.stops, clock.cut_at = dict(stops or {}), cut_at
    clock.run()
    return Timeline(layout, programs, clock.visits, usual)


class _Clock:
    def __init__(
        self, layout: Layout, programs: Sequence[Calls], work: Work, pace: Pace, lengths: list[int]
    ) -> None:
        self.programs, self.work, self.pace, self.lengths = programs, work, pace, lengths
        self.stops: dict[int, int] = {}
        self.cut_at: int | None = None
        self.members = {name: len(ranks) for name, ranks in layout.groups.items()}
        self.visits: list[list[Visit]] = [[] for _ in programs]
        self.there: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
        self.numbers: dict[tuple[int, str], int] = defaultdict(int)
        self.sent: dict[tuple[int, int], list[float]] = defaultdict(list)
        self.taken: dict[tuple[int, int], int] = defaultdict(int)
        self.receivers: dict[tuple[int, int], tuple[int, float]] = {}
        self.runnable: deque[int] = deque(range(len(programs)))

    def run(self) -> None:
        while self.runnable:
            rank = self.runnable.popleft()
            while self._advance(rank):
                pass
        for rank in range(len(self.programs)):
            self._hand_in(rank)

    def _next(self, rank: int) -> Visit | None:
        """Make the next visit of a rank; null where it makes no more."""
        visits = self.visits[rank]
        at = len(visits)
        if at == len(self.programs[rank]) or self.stops.get(rank) == at:
            return None
        before = visits[-1] if visits else Visit(0.0, 0.0)
        start = before.over if before.waited else before.made
        if start == NEVER:
            return None
        share = AHEAD if self.pace.runs_ahead else 1.0
        return Visit(start + share * self.work(rank, at), waited=self._waits(rank, at))

    def _waits(self, rank: int, at: int) -> bool:
        is_last = (at + 1) % self.lengths[rank] == 0
        operation = self.programs[rank][at].operation
        return not self.pace.runs_ahead or is_last or operation in self.pace.waits_at

    def _advance(self, rank: int) -> bool:
        """Make one call of a rank; tells whether it is over as soon as this rank comes to it."""
        visit = self._next(rank)
        if visit is None:
            return False
        at = len(self.visits[rank])
        before = self.visits[rank][-1].over if at else 0.0
        ready = max(visit.made, before)
        if self.pace.runs_ahead:
            ready += self.work(rank, at)
        self.visits[rank].append(visit)
        call = self.programs[rank][at]
        if self.cut_at is not None and at >= self.cut_at and call.operation != "send":
            return False
        if call.operation == "send":
            return self._send(rank, call.peer, visit, ready)
        if call.operation == "recv":
            return self._receive(rank, call.peer, ready)
        return self._meet(rank, call.group, ready)

    def _send(self, rank: int, peer: int, visit: Visit, ready: float) -> bool:
        visit.over = ready
        self.sent[rank, peer].append(ready)
        number, since = self.receivers.get((rank, peer), (0, 0.0))
        if number == len(self.sent[rank, peer]):
            del self.receivers[rank, peer]
            self._end(peer, max(ready, since))
        return True

    def _receive(self, rank: int, peer: int, ready: float) -> bool:
        self.taken[peer, rank] += 1
        number, sent = self.taken[peer, rank], self.sent[peer, rank]
        if len(sent) >= number:
            self.visits[rank][-1].over = max(ready, sent[number - 1]) + TRANSFER_S
            return True
        self.receivers[peer, rank] = (number, ready)
        return False

    def _meet(self, rank: int, group: str, ready: float) -> bool:
        self.numbers[rank, group] += 1
        there = self.there[group, self.numbers[rank, group]]
        there[rank] = ready
        if len(there) < self.members[group] or len({self._call_of(other) for other in there}) > 1:
            return False
        last = max(there.values())
        for other in there:
            self._end(other, last)
        return False

    def _call_of(self, rank: int) -> tuple[str, str]:
        call = self.programs[rank][len(self.visits[rank]) - 1]
        return call.operation, call.signature

    def _end(self, rank: int, moment: float) -> None:
        self.visits[rank][-1].over = moment + TRANSFER_S
        self.runnable.append(rank)

    def _hand_in(self, rank: int) -> None:
        """Let a thread that runs ahead make the calls behind one that never ends."""
        while visit := self._next(rank):
            self.visits[rank].append(visit)
