"""All causes in the order that has meaning: how each is found, and what follows from it.

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
    blamed,
    collective_cycle,
    ended,
    held,
    misconfigured,
    missing_send,
    network_path,
    node_lost,
    odd_gpu,
    set_up,
    shared_gpu,
    splits,
    straggler,
    symmetric_hang,
)
from watchtower.diagnosis.domain import NO_CAUSE, Line
from watchtower.diagnosis.picture import Picture
from watchtower.evidence.frames import FrameClass
from watchtower.wire.verdict import Cause


class OutlivesKill(NamedTuple):
    """Why a kill may not end a process."""

    state: str
    """Completes "rank 3 is ..."."""
    until: str
    """Completes "a kill may not end it until its ..."."""


IN_DRIVER = OutlivesKill("in the GPU driver", "call to the driver returns")


class Entry(NamedTuple):
    """One cause: how it is found, and what follows from it."""

    cause: Cause
    find: Callable[[Picture], Accusation | None]
    whom: tuple[Line, ...]
    """Whom to call: the first line that holds counts."""
    cannot_go_on: bool = False
    """A job cannot recover from it by itself. A pause of a healthy job never has this cause."""
    ends_job: bool = False
    """It ends a job by itself, and is therefore reported when the job has ended. With any other
    cause the job hangs, and is reported while it hangs."""
    of_dying: bool = False
    """It is diagnosed for a rank while the rank is dying, before the rank has ended."""
    shows_dying: bool = False
    """If a rank dies of it, any cause that was diagnosed before was a sign of its dying."""
    of_node: bool = False
    """Every job on the node of the suspect has a part in it."""
    outlives_kill: OutlivesKill | None = None
    """Why a kill may not end the suspect; None if it does."""
    is_general: bool = False
    """Another cause of the same rank is a finer reason than this one."""
    frame_class: FrameClass | None = None
    """What its suspects do, whatever their stacks show; None if their stacks decide it."""


def find_gpu_fault(picture: Picture) -> Accusation | None:
    """Accuse a GPU with an error, else one that has no work while all others wait, else
    one that something else separates from the others."""
    return (
        blamed.find_blamed(Cause.GPU_FAULT, picture)
        or odd_gpu.find_failed(picture)
        or symmetric_hang.find_separated(picture, Cause.GPU_FAULT)
    )


def find_behind(picture: Picture) -> Accusation | None:
    """Accuse ranks that are elsewhere, else one whose GPU still works, else one that something
    else separates from the others."""
    return (
        behind_collective.find(picture)
        or odd_gpu.find_working(picture)
        or symmetric_hang.find_separated(picture, Cause.BEHIND_COLLECTIVE)
    )


def find_exception(picture: Picture) -> Accusation | None:
    """Accuse ranks that ended by an exception, if that does not follow from a shared GPU."""
    if shared_gpu.find_reason_of_end(picture) is not None:
        return None
    return ended.find_ended(Cause.EXCEPTION, picture)


def find_misconfigured(picture: Picture) -> Accusation | None:
    """Accuse ranks that try to meet by different settings, else those whose MTUs differ, else those
    that share a GPU by mistake."""
    shared = shared_gpu.find_reason_of_end(picture)
    found = ended.find_ended(Cause.EXCEPTION, picture) if shared is not None else None
    if shared is not None and found is not None:
        return shared_gpu.explain_end(found, shared)
    return (
        misconfigured.find(picture)
        or network_path.find_mtu(picture)
        or shared_gpu.find_waiting(picture)
    )


def find_fabric_fault(picture: Picture) -> Accusation | None:
    """Name a link or fabric that failed, else the ends of a path on which nothing gets through."""
    return blamed.find_blamed(Cause.FABRIC_FAULT, picture) or network_path.find_lost(picture)


def _ended(
    cause: Cause,
    whom: tuple[Line, ...],
    *,
    find: Callable[[Picture], Accusation | None] | None = None,
    shows_dying: bool = False,
) -> Entry:
    return Entry(
        cause,
        find or partial(ended.find_ended, cause),
        whom,
        cannot_go_on=True,
        ends_job=True,
        shows_dying=shows_dying,
    )


def _split(cause: Cause, whom: tuple[Line, ...] = splits.WHOM) -> Entry:
    return Entry(cause, partial(splits.find_split, cause), whom)


CAUSES: tuple[Entry, ...] = (
    _ended(Cause.OOM_KILLED, ended.WHOM, shows_dying=True),
    _ended(Cause.EXCEPTION, ended.WHOM_OF_EXCEPTION, find=find_exception),
    _ended(Cause.PROCESS_DIED, ended.WHOM_OF_DEATH),
    Entry(
        Cause.EXITED_EARLY,
        ended.find_exited_early,
        ended.WHOM,
        cannot_go_on=True,
        ends_job=True,
    ),
    Entry(
        Cause.NODE_LOST,
        node_lost.find,
        node_lost.WHOM,
        cannot_go_on=True,
        ends_job=True,
        of_node=True,
    ),
    Entry(
        Cause.GPU_DRIVER_STUCK,
        partial(blamed.find_blamed, Cause.GPU_DRIVER_STUCK),
        blamed.WHOM_OF_GPU,
        cannot_go_on=True,
        of_node=True,
        outlives_kill=IN_DRIVER,
    ),
    Entry(Cause.GPU_FAULT, find_gpu_fault, blamed.WHOM_OF_GPU, cannot_go_on=True, of_node=True),
    Entry(
        Cause.PROCESS_STOPPED,
        partial(held.find_held, Cause.PROCESS_STOPPED),
        held.WHOM,
        cannot_go_on=True,
    ),
    Entry(
        Cause.PROCESS_TRACED,
        partial(held.find_held, Cause.PROCESS_TRACED),
        held.WHOM,
        cannot_go_on=True,
    ),
    Entry(
        Cause.PROCESS_FROZEN,
        partial(held.find_held, Cause.PROCESS_FROZEN),
        held.WHOM,
        cannot_go_on=True,
        of_dying=True,
        outlives_kill=OutlivesKill("frozen", "cgroup is thawed"),
    ),
    Entry(
        Cause.UNINTERRUPTIBLE_IO,
        partial(held.find_held, Cause.UNINTERRUPTIBLE_IO),
        held.WHOM_OF_IO,
        of_dying=True,
        outlives_kill=OutlivesKill("in state D", "IO returns"),
    ),
    Entry(Cause.MISCONFIGURED, find_misconfigured, misconfigured.WHOM, ends_job=True),
    Entry(
        Cause.NEVER_STARTED,
        set_up.find_never_started,
        set_up.WHOM_OF_NEVER_STARTED,
        cannot_go_on=True,
    ),
    Entry(Cause.INIT_STUCK, set_up.find_init_stuck, set_up.WHOM_OF_INIT_STUCK),
    Entry(Cause.DATALOADER_STALL, activities.find_loading, activities.WHOM_OF_WAIT),
    Entry(
        Cause.CHECKPOINT_STALL,
        activities.find_saving,
        activities.WHOM_OF_WAIT,
        frame_class=FrameClass.CHECKPOINT,
    ),
    Entry(Cause.GIL_HELD, activities.find_gil_held, activities.WHOM_OF_PROGRAM, of_dying=True),
    Entry(Cause.LOCK_DEADLOCK, activities.find_locked, activities.WHOM_OF_PROGRAM),
    Entry(Cause.BUSY_LOOP, activities.find_busy, activities.WHOM_OF_PROGRAM),
    Entry(Cause.NETWORK_WAIT, activities.find_network_wait, activities.WHOM_OF_WAIT),
    Entry(
        Cause.BEHIND_COLLECTIVE,
        find_behind,
        behind_collective.WHOM,
        of_dying=True,
        is_general=True,
    ),
    Entry(Cause.MISSING_SEND, missing_send.find, missing_send.WHOM),
    Entry(Cause.COLLECTIVE_CYCLE, collective_cycle.find, collective_cycle.WHOM),
    _split(Cause.MISMATCHED_COLLECTIVE),
    _split(Cause.UNEVEN_INPUTS, splits.WHOM_OF_UNEVEN_INPUTS),
    _split(Cause.CONDITIONAL_COLLECTIVE),
    Entry(
        Cause.FABRIC_FAULT,
        find_fabric_fault,
        blamed.WHOM_OF_FABRIC,
    ),
    Entry(Cause.SYMMETRIC_HANG, symmetric_hang.find, symmetric_hang.WHOM),
)
"""For jobs whose steps do not come."""

SLOW_CAUSES: tuple[Entry, ...] = (Entry(Cause.STRAGGLER, straggler.find, straggler.WHOM),)
"""For jobs whose steps come late."""


def _find_nothing(_: Picture) -> None:
    return None


_BY_CAUSE = {each: Entry(each, _find_nothing, ()) for each in Cause}
_BY_CAUSE[Cause.UNKNOWN] = Entry(Cause.UNKNOWN, _find_nothing, NO_CAUSE)
_BY_CAUSE |= {each.cause: each for each in (*CAUSES, *SLOW_CAUSES)}


def entry_of(cause: Cause) -> Entry:
    """Return what follows from a cause, also from one that is not in `CAUSES`."""
    return _BY_CAUSE[cause]
