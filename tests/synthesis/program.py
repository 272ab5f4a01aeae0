"""The calls of every rank in one step, and how one of them may call something else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    under_way: int = 0
    """How many of its last calls are not over; its thread may have gone on."""


@dataclass
class Outcome:
    """Where all ranks got stuck, and what they had called until then."""

    programs: list[Calls]
    places: list[Place]
    history: int
    """Whole steps before, which every rank has made."""
    usual: list[Calls] = field(default_factory=list)
    """The calls of a step without the fault."""


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
