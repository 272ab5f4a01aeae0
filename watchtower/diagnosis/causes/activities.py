"""Activities of a rank that the others wait for: it loads, saves, computes, talks, locks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from watchtower.diagnosis import doubts
from watchtower.diagnosis.accusation import MAX_QUOTED, Accusation, Reason, ReasonKind
from watchtower.diagnosis.blocked_rank import BlockedRank, Job
from watchtower.diagnosis.bystanders import find_stuck_worker, takes_from_process
from watchtower.diagnosis.doubts import Doubt
from watchtower.diagnosis.elsewhere import accuse_elsewhere, doubt_many
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position, Shape
from watchtower.diagnosis.reasons import child_reasons, movement_reason, movement_reasons
from watchtower.evidence.frame_class import FrameClass
from watchtower.evidence.kernel import name_target
from watchtower.evidence.native import CODE
from watchtower.wire.dumps import RankDump
from watchtower.wire.verdict import Cause

BUSY_WEIGHT, IDLE_SAVE_WEIGHT, SOCKET_WEIGHT, LOCK_WEIGHT = 0.5, 0.4, 0.45, 0.5

MESSAGE_CALLS = ("send", "recv", "receive")
"""Parts of the names of calls that exchange messages between two ranks."""

PHASE_WORDS = ("checkpoint", "ckpt", "snapshot")
"""Phases by which a job itself says that it saves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """One row of the table."""

    cause: Cause
    fits: Callable[[Picture, Position], bool]
    reasons: Callable[[Picture, Sequence[Position]], Iterable[Reason]]
    advise: Callable[[Picture, Position], tuple[str, ...]]
    among: Callable[[Picture], Sequence[Position]] = lambda picture: picture.sinks
    is_rank_by_rank: bool = True
    """Many ranks that do the same are more likely the norm than the fault."""
    why_not: tuple[Doubt, ...] = ()


def find_activity(cause: Cause, picture: Picture) -> Accusation | None:
    """Accuse the ranks that do this; of several rows of a cause, the first with any rank counts."""
    for row in ACTIVITIES:
        if row.cause is not cause:
            continue
        found = [item for item in row.among(picture) if row.fits(picture, item)]
        if found:
            many = doubt_many(picture, found) if row.is_rank_by_rank else ()
            return accuse_elsewhere(
                picture,
                found,
                cause,
                reasons=row.reasons(picture, found),
                advice=row.advise(picture, found[0]),
                why_not=(*many, *row.why_not),
            )
    return None


def _is_loading(_: Picture, position: Position) -> bool:
    """Return whether it waits for data; one that computes all the time only has such a name."""
    if position.reading is None or position.frame_class is not FrameClass.DATALOADER:
        return False
    return not (position.spins and position.reading.by_name)


def _was_fed(picture: Picture, position: Position) -> bool:
    """Return whether it takes from a queue of processes while a child of it is dead.

    A loop that gets its input from its own processes has a data loader, whatever it is called.
    """
    is_open = position.frame_class in (FrameClass.USER, FrameClass.LOCK)
    if not is_open or not takes_from_process(position):
        return False
    worker = find_stuck_worker(picture.stacks, position)
    return worker is not None and worker.is_dead


def _show_workers(picture: Picture, loading: Sequence[Position]) -> Iterable[Reason]:
    for item in loading:
        if worker := find_stuck_worker(picture.stacks, item):
            yield Reason(ReasonKind.WORKER, worker.weight, (item.rank,), worker)


def _advise_loading(picture: Picture, first: Position) -> tuple[str, ...]:
    return _look_at_source(picture, first), "restart_before_step"


def _look_at_source(picture: Picture, first: Position) -> str:
    if worker := find_stuck_worker(picture.stacks, first):
        return "find_why_worker_ended" if worker.is_dead else "look_at_worker"
    if first.kernel.target.startswith("/"):
        return "look_at_mount"
    if first.wait_place:
        return "wait_place"
    blocked = BlockedRank(Job(picture), first)
    return "look_at_storage" if blocked.on_storage or blocked.in_file_call else "read_code"


def _is_saving(_: Picture, position: Position) -> bool:
    if position.frame_class is FrameClass.CHECKPOINT:
        return True
    says_so = any(word in position.phase.lower() for word in PHASE_WORDS)
    return says_so and position.frame_class.traits.may_be_saving


def _show_saving(picture: Picture, saving: Sequence[Position]) -> Iterable[Reason]:
    for item in saving[:MAX_QUOTED]:
        yield movement_reason(item, 0.0 if item.moving else IDLE_SAVE_WEIGHT)
    yield from child_reasons(picture, saving[:MAX_QUOTED])


def _advise_saving(_: Picture, first: Position) -> tuple[str, ...]:
    if first.moving:
        return "wait_for_save", "checkpoint_is_older"
    is_remote = first.wait.wait_class == "network" and name_target(first.kernel)
    return "look_at_other_end" if is_remote else "look_at_destination", "checkpoint_is_older"


def _is_busy(_: Picture, position: Position) -> bool:
    """Return whether it spins in its own code; a name such as `Sampler` is no sign of loading."""
    if position.native is not None and position.native.kind not in CODE:
        return False
    by_name = position.reading is not None and position.reading.by_name
    loads_by_name = position.frame_class is FrameClass.DATALOADER and by_name
    return position.spins and (position.frame_class.traits.hides_any_call or loads_by_name)


def _waits_for_network(_: Picture, position: Position) -> bool:
    """Return whether it stays in a network call, and not for another rank."""
    if not position.asleep or not position.unchanged:
        return False
    wait_class = position.wait.wait_class
    if position.frame_class is FrameClass.NETWORK:
        return wait_class in {"network", "local", "poll", "lock", ""}
    return position.frame_class in (FrameClass.USER, FrameClass.NONE) and wait_class == "network"


def _show_sockets(_: Picture, remote: Sequence[Position]) -> Iterable[Reason]:
    for item in remote[:MAX_QUOTED]:
        yield Reason(ReasonKind.SOCKET, SOCKET_WEIGHT, (item.rank,), item)


def _advise_network(_: Picture, first: Position) -> tuple[str, ...]:
    return "look_at_other_end" if name_target(first.kernel) else "find_service", "give_a_timeout"


def _is_deadlocked(_: Picture, position: Position) -> bool:
    """Return whether its main thread stays at one lock while nothing in its process moves.

    A thread that runs, holds the GIL or is on its way may release it: then it is not a deadlock.
    """
    waits = position.frame_class.traits.may_be_at_lock and position.wait.wait_class == "lock"
    stays = position.shape is Shape.SAME and position.asleep and not position.moving
    dumps = position.evidence.dumps[-2:]
    kernels = {dump.kernel.syscall or dump.kernel.wchan for dump in dumps}
    return waits and stays and len(kernels) == 1 and not _may_be_released(dumps)


def _may_be_released(dumps: tuple[RankDump, ...]) -> bool:
    others = [[thread for thread in dump.threads if not thread.main] for dump in dumps]
    runs = any(thread.active or thread.owns_gil for each in others for thread in each)
    places = [{(thread.name, thread.digest) for thread in each} for each in others]
    return runs or places[0] != places[-1]


def _show_locks(picture: Picture, locked: Sequence[Position]) -> Iterable[Reason]:
    for item in locked[:MAX_QUOTED]:
        yield Reason(ReasonKind.LOCK, LOCK_WEIGHT, (item.rank,), item)
    yield from child_reasons(picture, locked[:MAX_QUOTED])


def _advise_lock(picture: Picture, first: Position) -> tuple[str, ...]:
    if first.wait_place:
        return "wait_place", "dump_threads"
    # In the kernel, a wait for a message of another rank is a wait for a lock, too.
    may_be_message = first.rank in picture.uncertain or _exchanges_messages(picture, first)
    return "read_lock_or_message" if may_be_message else "read_lock", "dump_threads"


def _exchanges_messages(picture: Picture, first: Position) -> bool:
    """Return whether ranks of the job send to each other: this rank by its log, others by stack."""
    logs = picture.collective_logs
    if logs is not None and logs.transfers.get(first.rank):
        return True
    calls = {item.reading.what for item in picture.waiting if item.reading is not None}
    return any(word in call for call in calls for word in MESSAGE_CALLS)


_LOCKED = Activity(
    cause=Cause.LOCK_DEADLOCK, fits=_is_deadlocked, reasons=_show_locks, advise=_advise_lock
)

_LOADING = Activity(
    cause=Cause.DATALOADER_STALL,
    fits=_is_loading,
    reasons=_show_workers,
    advise=_advise_loading,
    is_rank_by_rank=False,
)

ACTIVITIES = (
    _LOADING,
    replace(_LOADING, fits=_was_fed, why_not=(doubts.FED_BY_PROCESS,)),
    Activity(
        cause=Cause.CHECKPOINT_STALL,
        fits=_is_saving,
        reasons=_show_saving,
        advise=_advise_saving,
        is_rank_by_rank=False,
    ),
    Activity(
        cause=Cause.BUSY_LOOP,
        fits=_is_busy,
        reasons=lambda _, busy: movement_reasons(busy, BUSY_WEIGHT),
        advise=lambda *_: ("read_loop", "record_time"),
    ),
    Activity(
        cause=Cause.NETWORK_WAIT,
        fits=_waits_for_network,
        reasons=_show_sockets,
        advise=_advise_network,
    ),
    _LOCKED,
    # Asleep in a futex under the user's line is `irecv(...).wait()`, too: in doubt, an alternative.
    replace(_LOCKED, among=lambda picture: picture.secondary),
)
