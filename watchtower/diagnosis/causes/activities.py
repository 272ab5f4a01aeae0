"""Activities of a rank that the others wait for: it loads, saves, computes, talks, locks, or one of
its threads keeps Python's interpreter lock (GIL), so that no other thread of it can run."""

from __future__ import annotations

from dataclasses import replace

from watchtower.diagnosis.accusation import MAX_QUOTED, Accusation, Doubt, of_rank
from watchtower.diagnosis.advice import (
    DUMP_THREADS,
    LOOK_AT_DESTINATION,
    READ_CODE,
    RESTART_BEFORE_STEP,
    WAIT_PLACE,
)
from watchtower.diagnosis.bystanders import (
    Worker,
    describe_worker,
    find_children,
    find_stuck_worker,
    takes_from_process,
    write_child,
)
from watchtower.diagnosis.domain import ELSEWHERE, BlockedRank, Job, Line
from watchtower.diagnosis.elsewhere import accuse_elsewhere, doubt_many
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position, Shape
from watchtower.diagnosis.reasons import child_reasons, movement_reason, movement_reasons
from watchtower.diagnosis.words import write_place_of_wait
from watchtower.evidence.frames import FrameClass
from watchtower.evidence.kernel import name_target
from watchtower.evidence.native import CODE
from watchtower.evidence.threads import count_nested_tasks
from watchtower.wire.dumps import NativeKind, RankDump, ThreadDump
from watchtower.wire.verdict import Cause, Domain
from watchtower.writing.text import clean, join_sentences

WHOM_OF_WAIT = ELSEWHERE
WHOM_OF_PROGRAM = (Line(Domain.USER_CODE),)

BUSY_WEIGHT, IDLE_SAVE_WEIGHT, SOCKET_WEIGHT, LOCK_WEIGHT = 0.5, 0.4, 0.45, 0.5

# Loading

FED_BY_PROCESS = Doubt(
    "fed_by_process",
    0.8,
    "no stack frame shows that {suspects} was loading a batch: the process queue may carry "
    "something else",
)

FIND_WHY_WORKER_ENDED = (
    "find why the data loader worker pid {ended_worker} on {node} exited: read its output, and the "
    "kernel log (out of memory?)"
)
LOOK_AT_WORKER = (
    "check the data loader worker pid {worker} on {node}: `ps -o pid,stat,wchan:20,etime,args -p "
    "{worker}`"
)
LOOK_AT_MOUNT = "check {target} and its mount on {node}"
LOOK_AT_STORAGE = "check the storage that rank {rank} reads from on {node}"


def find_loading(picture: Picture) -> Accusation | None:
    """Accuse the ranks that wait for data, else those that a dead process of theirs has fed."""
    loading = [item for item in picture.sinks if _is_loading(item)]
    fed = [] if loading else [item for item in picture.sinks if _was_fed(picture, item)]
    found = loading or fed
    if not found:
        return None
    workers = {item.rank: find_stuck_worker(picture.stacks, item) for item in found}

    def write_worker(position: Position) -> str:
        worker = workers[position.rank]
        return f"its worker {describe_worker(worker)}" if worker else write_place_of_wait(position)

    return accuse_elsewhere(
        picture,
        found,
        Cause.DATALOADER_STALL,
        reasons=[
            of_rank("children", worker.weight, item, f"worker {describe_worker(worker)}")
            for item in found
            if (worker := workers[item.rank])
        ],
        advice=(_look_at_source(picture, found[0]), RESTART_BEFORE_STEP),
        why_not=() if loading else (FED_BY_PROCESS,),
        besides=write_worker,
    )


def _is_loading(position: Position) -> bool:
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


def _look_at_source(picture: Picture, first: Position) -> str:
    if worker := find_stuck_worker(picture.stacks, first):
        return FIND_WHY_WORKER_ENDED if worker.is_dead else LOOK_AT_WORKER
    if first.kernel.target.startswith("/"):
        return LOOK_AT_MOUNT
    if first.wait_place:
        return WAIT_PLACE
    blocked = BlockedRank(Job(picture), first)
    return LOOK_AT_STORAGE if blocked.on_storage or blocked.in_file_call else READ_CODE


# Saving

PHASE_WORDS = ("checkpoint", "ckpt", "snapshot")
"""Phases by which a job itself says that it saves."""

WAIT_FOR_SAVE = "wait for pid {pid}, or check how fast {destination} accepts data on {node}"
CHECKPOINT_IS_OLDER = "this checkpoint is not complete: a restart uses the one before it"
LOOK_AT_SAVER = (
    "check the process pid {worker} on {node}, which saves the checkpoint: "
    "`ps -o pid,stat,wchan:20,etime,args -p {worker}`"
)
LOOK_AT_OTHER_END = "check the other end of {target} from {node}"


def find_saving(picture: Picture) -> Accusation | None:
    """Accuse the ranks that save a checkpoint."""
    found = [item for item in picture.sinks if _is_saving(item)]
    if not found:
        return None
    first = found[0]
    if first.moving:
        advice = WAIT_FOR_SAVE
    elif isinstance(find_children(picture, first), Worker):
        advice = LOOK_AT_SAVER
    else:
        is_remote = first.wait.wait_class == "network" and name_target(first.kernel)
        advice = LOOK_AT_OTHER_END if is_remote else LOOK_AT_DESTINATION

    def write_movement(position: Position) -> str:
        moves = "it is moving data" if position.moving else "no data moves"
        return join_sentences(moves, write_child(picture, position))

    return accuse_elsewhere(
        picture,
        found,
        Cause.CHECKPOINT_STALL,
        reasons=[
            *(
                movement_reason(item, 0.0 if item.moving else IDLE_SAVE_WEIGHT)
                for item in found[:MAX_QUOTED]
            ),
            *child_reasons(picture, found[:MAX_QUOTED]),
        ],
        advice=(advice, CHECKPOINT_IS_OLDER),
        besides=write_movement,
    )


def _is_saving(position: Position) -> bool:
    if position.frame_class is FrameClass.CHECKPOINT:
        return True
    says_so = any(word in position.phase.lower() for word in PHASE_WORDS)
    return says_so and position.frame_class.traits.may_be_saving


# Computing

READ_LOOP = (
    "read the loop around {place}: which condition ends it, and can the input of rank {rank} "
    "prevent that?"
)
RECORD_TIME = "`py-spy record --pid {pid}` shows where rank {rank} spends its time"


def find_busy(picture: Picture) -> Accusation | None:
    """Accuse the ranks that spin in their own code."""
    found = [item for item in picture.sinks if _is_busy(item)]
    return accuse_elsewhere(
        picture,
        found,
        Cause.BUSY_LOOP,
        reasons=movement_reasons(found, BUSY_WEIGHT),
        advice=(READ_LOOP, RECORD_TIME),
        why_not=doubt_many(picture, found),
        besides=_write_use,
    )


def _is_busy(position: Position) -> bool:
    """Return whether it spins in its own code; a name such as `Sampler` is no sign of loading."""
    if position.native is not None and position.native.kind not in CODE:
        return False
    by_name = position.reading is not None and position.reading.by_name
    loads_by_name = position.frame_class is FrameClass.DATALOADER and by_name
    return position.spins and (position.frame_class.traits.hides_any_call or loads_by_name)


def _write_use(position: Position) -> str:
    native, where = position.native, ""
    if native is not None and native.kind is NativeKind.PYTHON:
        where = " in Python"
    elif native is not None and native.library:
        where = f" in {clean(native.library, 64)}"
    return f"it uses {position.evidence.movement.cpu_cores:.1f} CPU cores{where}"


# Talking

FIND_SERVICE = (
    "find which service rank {rank} on {node} is connected to, and whether that service answers"
)
GIVE_A_TIMEOUT = "add a timeout and a retry to that call"


def find_network_wait(picture: Picture) -> Accusation | None:
    """Accuse the ranks that stay in a network call."""
    found = [item for item in picture.sinks if _waits_for_network(item)]
    if not found:
        return None
    find_it = WAIT_PLACE if found[0].wait_place else FIND_SERVICE
    other_end = LOOK_AT_OTHER_END if name_target(found[0].kernel) else find_it
    return accuse_elsewhere(
        picture,
        found,
        Cause.NETWORK_WAIT,
        reasons=[
            of_rank(
                "network",
                SOCKET_WEIGHT,
                item,
                f"{_name_thread(item)} {_write_call(item)} in both dumps",
            )
            for item in found[:MAX_QUOTED]
        ],
        advice=(other_end, GIVE_A_TIMEOUT),
        why_not=doubt_many(picture, found),
        besides=write_place_of_wait,
    )


def _waits_for_network(position: Position) -> bool:
    """Return whether it stays in a network call, and not for another rank."""
    if not position.asleep or not position.unchanged:
        return False
    wait_class = position.wait.wait_class
    if position.frame_class is FrameClass.NETWORK:
        return wait_class in {"network", "local", "poll", "lock", ""}
    return position.frame_class in (FrameClass.USER, FrameClass.NONE) and wait_class == "network"


def _write_call(position: Position) -> str:
    place = position.wait_place
    return place.text if place and place.text else "is in a network call"


def _name_thread(position: Position) -> str:
    dump, stack = position.last_dump, position.stack
    threads = dump.threads if dump else ()
    inside = [thread for thread in threads if stack and thread.digest == stack.digest]
    named = inside and not any(thread.main for thread in inside)
    return f"its thread `{clean(inside[0].name, 60)}`" if named else "its main thread"


# Locks

MESSAGE_CALLS = ("send", "recv", "receive")
"""Parts of the names of calls that exchange messages between two ranks."""

NESTED_TASKS = (
    "read the code around {place}: a task waits there for another task of its own pool, and no "
    "thread of the pool is free: use a second pool, or do not wait inside of tasks"
)
READ_LOCK = (
    "read the code around {place}: which lock does it acquire, and does a caller or another "
    "waiting thread hold that lock?"
)
READ_LOCK_OR_MESSAGE = (
    "read the code around {place}: does rank {rank} wait there for a message of another rank "
    "(`irecv().wait()`), or for a lock?"
)


def find_locked(picture: Picture) -> Accusation | None:
    """Accuse the ranks that stay at a lock.

    Asleep in a futex under the user's line is `irecv(...).wait()`, too: ranks of which that may be
    so come last.
    """
    found = [i for i in picture.sinks if _is_deadlocked(i) or _count_nested(picture, i)]
    found = found or [item for item in picture.secondary if _is_deadlocked(item)]
    if not found:
        return None

    def write_lock(position: Position) -> str:
        nested = _write_nested(_count_nested(picture, position))
        waits = nested or write_place_of_wait(position)
        return join_sentences(waits, write_child(picture, position))

    return accuse_elsewhere(
        picture,
        found,
        Cause.LOCK_DEADLOCK,
        reasons=[
            *(of_rank("threads", LOCK_WEIGHT, i, _show(picture, i)) for i in found[:MAX_QUOTED]),
            *child_reasons(picture, found[:MAX_QUOTED]),
        ],
        advice=(_read_lock(picture, found[0]), DUMP_THREADS),
        why_not=doubt_many(picture, found),
        besides=write_lock,
    )


def _count_nested(picture: Picture, position: Position) -> int:
    """Return how many tasks of pools of a rank wait for tasks that no thread is free to run."""
    dumps = position.evidence.dumps[-2:]
    if position.frame_class is not FrameClass.THREAD or not position.asleep or position.moving:
        return 0
    counts = {count_nested_tasks(dump, picture.stacks) for dump in dumps}
    return counts.pop() if len(counts) == 1 and position.unchanged else 0


def _write_nested(count: int) -> str:
    if not count:
        return ""
    if count == 1:
        return "its only task of a pool waits for another task, and no thread is free to run that"
    return f"all {count} tasks of its pools wait for other tasks, and no thread is free to run them"


def _show(picture: Picture, position: Position) -> str:
    nested = _write_nested(_count_nested(picture, position))
    return f"{nested}, in both dumps" if nested else _show_lock(position)


def _show_lock(position: Position) -> str:
    dump = position.last_dump
    others = len(dump.threads) - 1 if dump else 0
    rest = f"also unchanged: {others} other Python threads" if others else "no other Python thread"
    return f"waits for a lock in both dumps; {rest}"


def _is_deadlocked(position: Position) -> bool:
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


def _read_lock(picture: Picture, first: Position) -> str:
    if _count_nested(picture, first):
        return NESTED_TASKS
    if first.wait_place:
        return WAIT_PLACE
    # In the kernel, a wait for a message of another rank is a wait for a lock, too. A lock of
    # Python is in the interpreter itself.
    is_in_python = first.native is not None and first.native.kind is NativeKind.PYTHON
    may_be_message = not is_in_python and (
        first.rank in picture.uncertain or _exchanges_messages(picture, first)
    )
    return READ_LOCK_OR_MESSAGE if may_be_message else READ_LOCK


def _exchanges_messages(picture: Picture, first: Position) -> bool:
    """Return whether ranks of the job send to each other: this rank by its log, others by stack."""
    logs = picture.collective_logs
    if logs is not None and logs.transfers.get(first.rank):
        return True
    calls = {item.reading.what for item in picture.waiting if item.reading is not None}
    return any(word in call for call in calls for word in MESSAGE_CALLS)


# The GIL

OWNER_WEIGHT = 0.7
"""The same thread owned the lock at the same line in two dumps; one that computes in Python gives
it up every 5 ms (sys.getswitchinterval), so it is seldom caught twice in one line."""

GIL_INSIDE_CALL = Doubt(
    "gil_inside_call",
    0.6,
    "the main thread of {suspects} is in a collective and may wait for others",
)

DUMP_NATIVE = "`py-spy dump --native --pid {pid}` shows the native code that holds the GIL"
RELEASE_GIL = "release the GIL around native code that waits or computes for long"


def find_gil_held(picture: Picture) -> Accusation | None:
    """Accuse the ranks in which one thread holds the GIL in native code in every dump."""
    places = (*picture.sinks, *picture.unseen, *picture.waiting)
    held = {item.rank: owner for item in places if (owner := _find_owner(item))}
    suspects = [item for item in places if item.rank in held]
    outside = [item for item in suspects if not item.waits]
    if not suspects or (not outside and picture.sinks):
        return None
    suspects = outside or suspects

    def place_of(position: Position) -> str | None:
        known = picture.stacks.get(held[position.rank].digest)
        return known.reading.where if known and known.reading else None

    def write_owner(position: Position) -> str:
        owner, place = held[position.rank], place_of(position)
        thread = "its main thread" if owner.main else f"its thread `{clean(owner.name, 60)}`"
        return f"{thread} holds the GIL" + (f" at {clean(place, 120)}" if place else "")

    accusation = accuse_elsewhere(
        picture,
        suspects,
        Cause.GIL_HELD,
        reasons=[
            of_rank("gil", OWNER_WEIGHT, item, f"{write_owner(item)}, in two dumps")
            for item in suspects[:MAX_QUOTED]
        ],
        why_not=[] if outside else [GIL_INSIDE_CALL],
        besides=write_owner,
        advice=(DUMP_NATIVE, RELEASE_GIL),
    )
    return accusation and replace(accusation, where=place_of)


def _find_owner(position: Position) -> ThreadDump | None:
    """Return the thread that owned the lock at one line in the last two dumps."""
    owners = [_owner_of(dump) for dump in position.evidence.dumps[-2:]]
    if len(owners) < 2 or owners[0] is None or owners[1] is None:
        return None
    stays = (owners[0].name, owners[0].digest) == (owners[1].name, owners[1].digest)
    # The main thread at work in Python owns the lock too; asleep it has no reason to.
    return owners[1] if stays and (not owners[1].main or position.asleep) else None


def _owner_of(dump: RankDump) -> ThreadDump | None:
    return next((thread for thread in dump.threads if thread.owns_gil), None)
