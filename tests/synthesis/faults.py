"""Faults of imagined jobs: what is done to a rank, how it looks, and what is true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.synthesis.evidence import Appearance, Maker, Recording, own
from tests.synthesis.layout import Layout
from tests.synthesis.program import (
    Call,
    Calls,
    Outcome,
    in_groups,
    indices,
    insert,
    regroup,
    reshape,
    skip,
    swap,
    write_program,
)
from tests.synthesis.timeline import run
from watchtower.evidence.case import Case, Presence
from watchtower.wire.dumps import KernelWait
from watchtower.wire.report import Ending, EndingKind, ProcessState

BARRIER = Call("barrier", 46, "world", signature="")


@dataclass(frozen=True)
class Truth:
    """A case and the right answer."""

    case: Case
    ranks: tuple[int, ...]
    causes: tuple[str, ...]
    outcome: Outcome


@dataclass(frozen=True)
class Fault:
    """One kind of fault."""

    name: str
    causes: tuple[str, ...]
    appearance: Appearance | None = None
    """Of the rank at fault; null when it waits in a call as the others do."""
    spoil: Callable[[Calls, int], Callable[[Calls], Calls] | None] | None = None
    """Makes the change at a call of this index; null where it makes none."""
    suits: Callable[[Layout], bool] = lambda _: True


def sleeping(function: str, line: int, file: str) -> Appearance:
    """Asleep in the user's own code."""
    kernel = KernelWait(state=ProcessState.SLEEPING, syscall="clock_nanosleep")
    frames = (own(function, line, file), own("train", 14, looped=True), own("<module>", 80))
    return Appearance(frames=frames, kernel=kernel)


LOADING = sleeping("__next__", 88, "/job/data.py")
LOCKED = Appearance(
    frames=(own("flush", 33, "/job/metrics.py"), own("train", 48, looped=True), own("<module>", 80))
)
SPINNING = Appearance(
    frames=(own("search", 7, "/job/beam.py"), own("train", 16, looped=True), own("<module>", 80)),
    state=ProcessState.RUNNING,
    kernel=KernelWait(state=ProcessState.RUNNING),
    cpu_cores=1.0,
    active=True,
)
STOPPED = Appearance(
    frames=LOADING.frames,
    state=ProcessState.STOPPED,
    kernel=KernelWait(state=ProcessState.STOPPED),
    answers=False,
)
IN_D = Appearance(
    frames=LOADING.frames,
    state=ProcessState.UNINTERRUPTIBLE,
    kernel=KernelWait(
        state=ProcessState.UNINTERRUPTIBLE, wchan="nfs_wait_bit_killable", syscall="read"
    ),
)
KILLED = Appearance(
    presence=Presence.ENDED,
    state=ProcessState.GONE,
    ended=Ending(kind=EndingKind.SIGNAL, code=9, age_s=8.0),
)


SILENT = Appearance(presence=Presence.SILENT)


def _after_last(calls: Calls) -> int:
    return len(calls) - 1


def _swap_last_two(calls: Calls, at: int) -> Callable[[Calls], Calls] | None:
    gathers = indices(calls, "reduce_scatter")
    return swap(gathers[0]) if gathers else None


def _skip_send(calls: Calls, at: int) -> Callable[[Calls], Calls] | None:
    sends = indices(calls, "send")
    return skip(sends[at % len(sends)]) if sends else None


def _reshape(calls: Calls, at: int) -> Callable[[Calls], Calls] | None:
    reduces = indices(calls, "all_reduce")
    return reshape(reduces[at % len(reduces)])


def _own_call(prefix: str, call: Call) -> Callable[[Calls, int], Callable[[Calls], Calls] | None]:
    """Make one more call in a group of this kind, before one that all of it make."""

    def spoil(calls: Calls, at: int) -> Callable[[Calls], Calls] | None:
        found = in_groups(calls, prefix)
        index = found[at % len(found)]
        return insert(index, replace(call, group=calls[index].group))

    return spoil


def _broadcast_instead(calls: Calls, at: int) -> Callable[[Calls], Calls] | None:
    index = in_groups(calls, "dp")[at % 2]
    return lambda calls: [
        *calls[:index],
        replace(calls[index], operation="broadcast"),
        *calls[index + 1 :],
    ]


def _leave_out(prefix: str) -> Callable[[Calls, int], Callable[[Calls], Calls] | None]:
    def spoil(calls: Calls, at: int) -> Callable[[Calls], Calls] | None:
        found = in_groups(calls, prefix)
        return skip(found[at % len(found)])

    return spoil


def _repeat(prefix: str) -> Callable[[Calls, int], Callable[[Calls], Calls] | None]:
    def spoil(calls: Calls, at: int) -> Callable[[Calls], Calls] | None:
        found = in_groups(calls, prefix)
        index = found[at % len(found)]
        return insert(index, calls[index])

    return spoil


def _take_other_group(calls: Calls, at: int) -> Callable[[Calls], Calls] | None:
    """Make a call of the tensor parallel group in the data parallel one, or the other way."""
    tensor, data = in_groups(calls, "tp"), in_groups(calls, "dp")
    mine, other = (tensor, data) if at % 2 else (data, tensor)
    return regroup(mine[at // 2 % len(mine)], calls[other[0]])


def _has_majority(layout: Layout) -> bool:
    """Groups of two have none."""
    sizes = (size for size in (layout.tensor, layout.data) if size > 1)
    return layout.size > 2 and all(size > 2 for size in sizes)


FAULTS = (
    Fault("asleep in its data loader", ("dataloader_stall",), LOADING),
    Fault("busy", ("busy_loop",), SPINNING),
    Fault("locked", ("lock_deadlock",), LOCKED),
    Fault("stopped", ("process_stopped",), STOPPED),
    Fault("in state D", ("uninterruptible_io",), IN_D),
    Fault("killed", ("process_died",), KILLED),
    Fault(
        "a barrier of its own",
        ("conditional_collective",),
        spoil=lambda calls, at: insert(_after_last(calls), BARRIER),
        suits=lambda layout: layout.size > 2,
    ),
    Fault(
        "another order",
        ("mismatched_collective",),
        spoil=_swap_last_two,
        suits=lambda layout: layout.data > 2,
    ),
    Fault("another size", ("mismatched_collective",), spoil=_reshape, suits=_has_majority),
    Fault(
        "a send left out",
        ("missing_send",),
        spoil=_skip_send,
        suits=lambda layout: layout.pipeline > 1,
    ),
    Fault(
        "a barrier of its own in a tensor parallel group",
        ("conditional_collective",),
        spoil=_own_call("tp", BARRIER),
        suits=lambda layout: layout.tensor > 2,
    ),
    Fault(
        "a broadcast of its own in a data parallel group",
        ("conditional_collective",),
        spoil=_own_call("dp", Call("broadcast", 41, signature="float32[4]")),
        suits=lambda layout: layout.data > 2,
    ),
    Fault(
        "another operation",
        ("mismatched_collective",),
        spoil=_broadcast_instead,
        suits=lambda layout: layout.data > 2,
    ),
)

OFFSETS = (
    Fault(
        "a collective left out in a tensor parallel group",
        ("mismatched_collective",),
        spoil=_leave_out("tp"),
        suits=lambda layout: layout.tensor > 2,
    ),
    Fault(
        "a collective left out in a data parallel group",
        ("mismatched_collective",),
        spoil=_leave_out("dp"),
        suits=lambda layout: layout.data > 2,
    ),
    Fault(
        "a collective made twice in a tensor parallel group",
        ("mismatched_collective",),
        spoil=_repeat("tp"),
        suits=lambda layout: layout.tensor > 2,
    ),
    Fault(
        "a collective made twice in a data parallel group",
        ("mismatched_collective",),
        spoil=_repeat("dp"),
        suits=lambda layout: layout.data > 2,
    ),
)
"""Faults by which a rank is one call off while every call looks like the others'."""

WRONG_GROUP = Fault(
    "a call in the wrong group",
    ("mismatched_collective",),
    spoil=_take_other_group,
    suits=lambda layout: layout.tensor > 1 and layout.data > 1,
)
"""One call too many in one group and one too few in another; beside messages it may be anyone's."""


def imagine(
    layout: Layout,
    fault: Fault,
    rank: int,
    at: int = 0,
    recording: Recording | None = None,
) -> Truth:
    """Make the case of one fault; `at` chooses the call of the step before which it comes."""
    calls = write_program(layout, rank)
    maker = Maker(layout, recording or Recording())
    if fault.spoil is not None:
        spoil = fault.spoil(calls, at)
        outcome = run(layout, spoil={rank: spoil} if spoil else {})
        return Truth(maker.make(outcome, {}), (rank,), fault.causes, outcome)
    assert fault.appearance is not None
    waits = [index for index, call in enumerate(calls) if call.operation != "send"]
    outcome = run(layout, stops={rank: waits[at % len(waits)]})
    return Truth(maker.make(outcome, {rank: fault.appearance}), (rank,), fault.causes, outcome)


def imagine_cut(layout: Layout, recording: Recording | None = None) -> Truth:
    """Make the case of a network that is gone while everybody is in the same collective."""
    last = len(write_program(layout, 0)) - 1
    stuck = {rank: len(write_program(layout, rank)) - 1 for rank in range(layout.size)}
    assert set(stuck.values()) >= {last}
    outcome = run(layout, spoil={0: reshape(last)})
    for rank, place in enumerate(outcome.places):
        place.at, place.inside, place.under_way, place.done = stuck[rank], True, 1, False
    outcome.programs[0] = outcome.usual[0]
    case = Maker(layout, recording or Recording()).make(outcome, {})
    return Truth(case, (), ("symmetric_hang",), outcome)
