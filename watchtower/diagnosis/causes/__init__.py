"""All causes in the order that has meaning: how each is found, and whom to call.

First by tier: what cannot answer at all explains every wait, so it comes before set-up, and set-up
before what stacks say. Inside a tier an accusation with more confidence wins; between equals the
order below decides, from the reason that excludes the most to the one that says the least:

1. how a process ended, the kernel's own word (OOM) before an exception before a bare exit code,
   and an exit with 0 last, because only the others' waiting makes it a fault;
2. a node that is gone with all its ranks: nothing of it can be asked; then a driver that does not
   answer, and a GPU with an error;
3. what keeps a living process from running, the deliberate ones (stop, trace) first, then a frozen
   cgroup, which looks like state D, then D itself;
4. ranks that never came, before those that came and stay outside of set-up;
5. what the user's code is in: named work (data, checkpoint) before unnamed waits (lock, busy,
   network), and last the bare fact of being elsewhere;
6. ranks that all wait: a message left out, calls that do not fit together, and last that no rank is
   to blame: a link that failed, then no known reason.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from watchtower.diagnosis.accusation import Accusation
from watchtower.diagnosis.causes import (
    activities,
    behind_collective,
    collective_cycle,
    ended,
    fabric_fault,
    gpu_fault,
    held,
    missing_send,
    node_lost,
    set_up,
    splits,
    straggler,
    symmetric_hang,
)
from watchtower.diagnosis.domain import NO_CAUSE, Line
from watchtower.diagnosis.picture import Picture
from watchtower.wire.verdict import Cause


class Entry(NamedTuple):
    """One cause."""

    cause: Cause
    find: Callable[[Picture], Accusation | None]
    whom: tuple[Line, ...]
    """Whom to call: the first line that holds counts."""


def find_gpu_fault(picture: Picture) -> Accusation | None:
    """Accuse a GPU that reported an error, else one that has no work while all others wait, else
    one that something else separates from the others."""
    return (
        gpu_fault.find_error(picture)
        or gpu_fault.find_failed(picture)
        or symmetric_hang.find_separated(picture, Cause.GPU_FAULT)
    )


def find_behind(picture: Picture) -> Accusation | None:
    """Accuse ranks that are elsewhere, else one whose GPU still works, else one that something
    else separates from the others."""
    return (
        behind_collective.find(picture)
        or gpu_fault.find_working(picture)
        or symmetric_hang.find_separated(picture, Cause.BEHIND_COLLECTIVE)
    )


def _ended(cause: Cause, whom: tuple[Line, ...]) -> Entry:
    return Entry(cause, partial(ended.find_ended, cause), whom)


def _held(cause: Cause, whom: tuple[Line, ...] = held.WHOM) -> Entry:
    return Entry(cause, partial(held.find_held, cause), whom)


def _split(cause: Cause, whom: tuple[Line, ...] = splits.WHOM) -> Entry:
    return Entry(cause, partial(splits.find_split, cause), whom)


CAUSES: tuple[Entry, ...] = (
    _ended(Cause.OOM_KILLED, ended.WHOM),
    _ended(Cause.EXCEPTION, ended.WHOM_OF_EXCEPTION),
    _ended(Cause.PROCESS_DIED, ended.WHOM_OF_DEATH),
    Entry(Cause.EXITED_EARLY, ended.find_exited_early, ended.WHOM),
    Entry(Cause.NODE_LOST, node_lost.find, node_lost.WHOM),
    Entry(Cause.GPU_DRIVER_STUCK, gpu_fault.find_stuck_driver, gpu_fault.WHOM),
    Entry(Cause.GPU_FAULT, find_gpu_fault, gpu_fault.WHOM),
    _held(Cause.PROCESS_STOPPED),
    _held(Cause.PROCESS_TRACED),
    _held(Cause.PROCESS_FROZEN),
    _held(Cause.UNINTERRUPTIBLE_IO, held.WHOM_OF_IO),
    Entry(Cause.NEVER_STARTED, set_up.find_never_started, set_up.WHOM_OF_NEVER_STARTED),
    Entry(Cause.INIT_STUCK, set_up.find_init_stuck, set_up.WHOM_OF_INIT_STUCK),
    Entry(Cause.DATALOADER_STALL, activities.find_loading, activities.WHOM_OF_WAIT),
    Entry(Cause.CHECKPOINT_STALL, activities.find_saving, activities.WHOM_OF_WAIT),
    Entry(Cause.GIL_HELD, activities.find_gil_held, activities.WHOM_OF_PROGRAM),
    Entry(Cause.LOCK_DEADLOCK, activities.find_locked, activities.WHOM_OF_PROGRAM),
    Entry(Cause.BUSY_LOOP, activities.find_busy, activities.WHOM_OF_PROGRAM),
    Entry(Cause.NETWORK_WAIT, activities.find_network_wait, activities.WHOM_OF_WAIT),
    Entry(Cause.BEHIND_COLLECTIVE, find_behind, behind_collective.WHOM),
    Entry(Cause.MISSING_SEND, missing_send.find, missing_send.WHOM),
    Entry(Cause.COLLECTIVE_CYCLE, collective_cycle.find, collective_cycle.WHOM),
    _split(Cause.MISMATCHED_COLLECTIVE),
    _split(Cause.UNEVEN_INPUTS, splits.WHOM_OF_UNEVEN_INPUTS),
    _split(Cause.CONDITIONAL_COLLECTIVE),
    Entry(Cause.FABRIC_FAULT, fabric_fault.find, fabric_fault.WHOM),
    Entry(Cause.SYMMETRIC_HANG, symmetric_hang.find, symmetric_hang.WHOM),
)
"""For jobs whose steps do not come."""

SLOW_CAUSES: tuple[Entry, ...] = (Entry(Cause.STRAGGLER, straggler.find, straggler.WHOM),)
"""For jobs whose steps come late."""

_WHOM = {each.cause: each.whom for each in (*CAUSES, *SLOW_CAUSES)} | {Cause.UNKNOWN: NO_CAUSE}


def whom_of(cause: Cause) -> tuple[Line, ...]:
    """Return the lines that decide whom to call about a cause."""
    return _WHOM.get(cause, ())
