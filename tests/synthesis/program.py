"""What every rank calls in one step, and where all get stuck when one does something else."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from tests.synthesis.layout import Layout

MICRO_BATCHES = 2


@dataclass(frozen=True)
class Call:
    """One blocking call, and the line it is made in."""

    operation: str
    line: int
    group: str = ""
    peer: int = -1
    signature: str = "float32[1024]"


Calls = list[Call]


def write_program(layout: Layout, rank: int) -> Calls:
    """Write the calls of one training step: micro-batches through the pipeline, then gradients."""
    names = {name.rstrip("0123456789."): name for name in layout.names_of(rank)}
    before, after = layout.neighbour(rank, -1), layout.neighbour(rank, 1)
    calls: Calls = []
    for _ in range(MICRO_BATCHES if layout.pipeline > 1 else 1):
        calls += [Call("recv", 20, peer=before)] if before is not None else []
        calls += [Call("all_reduce", 22, names["tp"])] if "tp" in names else []
        calls += [Call("all_to_all", 24, names["ep"])] if "ep" in names else []
        calls += [Call("send", 26, peer=after)] if after is not None else []
        calls += [Call("recv", 30, peer=after)] if after is not None else []
        calls += [Call("all_reduce", 32, names["tp"])] if "tp" in names else []
        calls += [Call("send", 36, peer=before)] if before is not None else []
    calls += [Call("reduce_scatter", 40, names["dp"])] if "dp" in names else []
    calls += [Call("all_gather", 42, names["dp"])] if "dp" in names else []
    calls.append(Call("all_reduce", 44, "world", signature="float32[1]"))
    return calls


Spoil = Callable[[Calls], Calls]


@dataclass
class Place:
    """Where a rank got stuck."""

    at: int = 0
    """Index of the call it is in, or would make next."""
    inside: bool = False
    """It has made that call; else it never came to it."""
    done: bool = False
    """It has made all its calls."""
    under_way: int | None = None
    """How many of its last calls are not over, its thread may have gone on; null: the one it is
    inside of."""


@dataclass
class Outcome:
    """Where all ranks got stuck, and what they had called until then."""

    programs: list[Calls]
    places: list[Place]
    history: int
    """Whole steps before, which every rank has made."""
    usual: list[Calls] = field(default_factory=list)
    """What a step without the fault calls."""


def run(
    layout: Layout,
    *,
    spoil: dict[int, Spoil] | None = None,
    stops: dict[int, int] | None = None,
    cut_at: int | None = None,
    history: int = 40,
) -> Outcome:
    """Run one step until nothing moves any more.

    `spoil` changes the calls of ranks, `stops` keeps a rank from making its call of that index,
    `cut_at` takes the network away: calls of that index and later ones never end.
    """
    usual = [write_program(layout, rank) for rank in range(layout.size)]
    programs = [
        spoil[rank](list(calls)) if spoil and rank in spoil else calls
        for rank, calls in enumerate(usual)
    ]
    world = _World(layout, programs, stops or {}, cut_at)
    world.run()
    return Outcome(programs, world.places, history, usual)


class _World:
    def __init__(
        self, layout: Layout, programs: Sequence[Calls], stops: dict[int, int], cut_at: int | None
    ) -> None:
        self.programs, self.stops, self.cut_at = programs, stops, cut_at
        self.members = {name: len(ranks) for name, ranks in layout.groups.items()}
        self.places = [Place() for _ in programs]
        self.arrived: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.numbers: dict[tuple[int, str], int] = defaultdict(int)
        self.sent: dict[tuple[int, int], int] = defaultdict(int)
        self.taken: dict[tuple[int, int], int] = defaultdict(int)
        self.waiting_for: dict[tuple[int, int], int] = {}
        self.runnable: deque[int] = deque(range(len(programs)))

    def run(self) -> None:
        while self.runnable:
            rank = self.runnable.popleft()
            while self._advance(rank):
                pass

    def _advance(self, rank: int) -> bool:
        """Make one call of a rank; tells whether it may go on at once."""
        place = self.places[rank]
        if place.at == len(self.programs[rank]):
            place.done = True
            return False
        if self.stops.get(rank) == place.at:
            return False
        place.inside = True
        call = self.programs[rank][place.at]
        if self.cut_at is not None and place.at >= self.cut_at and call.operation != "send":
            self._arrive(rank, call)
            return False
        if call.operation == "send":
            return self._send(rank, call)
        return self._receive(rank, call) if call.operation == "recv" else self._meet(rank, call)

    def _leave(self, rank: int) -> None:
        self.places[rank].at += 1
        self.places[rank].inside = False

    def _send(self, rank: int, call: Call) -> bool:
        self.sent[rank, call.peer] += 1
        self._leave(rank)
        if self.waiting_for.get((rank, call.peer)) == self.sent[rank, call.peer]:
            del self.waiting_for[rank, call.peer]
            self._leave(call.peer)
            self.runnable.append(call.peer)
        return True

    def _receive(self, rank: int, call: Call) -> bool:
        self.taken[call.peer, rank] += 1
        if self.sent[call.peer, rank] >= self.taken[call.peer, rank]:
            self._leave(rank)
            return True
        self.waiting_for[call.peer, rank] = self.taken[call.peer, rank]
        return False

    def _arrive(self, rank: int, call: Call) -> list[int]:
        if not call.group:
            return []
        self.numbers[rank, call.group] += 1
        there = self.arrived[call.group, self.numbers[rank, call.group]]
        there.append(rank)
        return there

    def _meet(self, rank: int, call: Call) -> bool:
        there = self._arrive(rank, call)
        if len(there) < self.members[call.group]:
            return False
        made = {self._call_of(other) for other in there}
        if len(made) > 1:
            return False
        for other in there:
            self._leave(other)
            if other != rank:
                self.runnable.append(other)
        return True

    def _call_of(self, rank: int) -> tuple[str, str]:
        call = self.programs[rank][self.places[rank].at]
        return call.operation, call.signature


def skip(index: int) -> Spoil:
    """Leave a call out."""
    return lambda calls: calls[:index] + calls[index + 1 :]


def insert(index: int, call: Call) -> Spoil:
    """Make one more call."""
    return lambda calls: [*calls[:index], call, *calls[index:]]


def swap(index: int) -> Spoil:
    """Make two calls in the other order."""
    return lambda calls: [
        *calls[:index],
        calls[index + 1],
        calls[index],
        *calls[index + 2 :],
    ]


def reshape(index: int) -> Spoil:
    """Make a call with another size."""
    return lambda calls: [
        *calls[:index],
        replace(calls[index], signature="float32[7]"),
        *calls[index + 1 :],
    ]


def regroup(index: int, call: Call) -> Spoil:
    """Make a call in the group of another call, which may ask for another operation."""
    return lambda calls: [
        *calls[:index],
        replace(calls[index], group=call.group, operation=call.operation, signature=call.signature),
        *calls[index + 1 :],
    ]


def indices(calls: Iterable[Call], *operations: str) -> list[int]:
    """Find the calls of these operations."""
    return [index for index, call in enumerate(calls) if call.operation in operations]


def in_groups(calls: Iterable[Call], prefix: str) -> list[int]:
    """Find the calls in the groups of one kind, such as "tp"."""
    return [index for index, call in enumerate(calls) if call.group.startswith(prefix)]
