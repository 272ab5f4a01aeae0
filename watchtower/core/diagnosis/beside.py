"""The other threads of a suspect whose thread waits for one of them: where they are, as quotes.

They weigh nothing. That a thread stays somewhere does not show that it is the one waited for.
"""

from __future__ import annotations

from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Position
from watchtower.core.phrases import clean
from watchtower.core.reading.frames import FrameClass, last_component, name_line
from watchtower.core.reading.threads import KnownStack, find_thread
from watchtower.core.reading.wait_places import called_by_user, find_called
from watchtower.wire.dumps import RankDump, ThreadDump
from watchtower.wire.verdict import Evidence

MAX_QUOTED_THREADS = 3
"""Threads quoted per rank: a pool's others most often do the same, and the dump has them all."""

SAID_WAITS = {
    FrameClass.NETWORK: "waits for the network",
    FrameClass.CHILD: "waits for a program it has started",
    FrameClass.THREAD: "waits for another thread",
    FrameClass.COLLECTIVE: "waits for other ranks",
    FrameClass.INIT: "waits for other ranks",
}
"""What a thread waits for by the class of its frames. The kernel is asked of the main one only."""

IDLE = frozenset({FrameClass.LOCK, FrameClass.NONE})
"""Classes of threads that most often wait for work: shown last, and not in a summary. Nor is one
there that holds the GIL: that is a cause of its own."""


def thread_evidence(picture: Picture, position: Position) -> tuple[Evidence, ...]:
    """Quote the threads that one may be waited for, the most telling first."""
    rank = position.rank
    return tuple(
        Evidence(source="threads", text=f"rank {rank}: {says}", ranks=str(rank), weight=0.0)
        for says, _ in _read_others(picture, position)
    )


def say_thread(picture: Picture, position: Position) -> str:
    """Say "; its thread s3_2 stays at save.py:11 in upload", or nothing where none tells more."""
    says = next((says for says, idle in _read_others(picture, position) if not idle), "")
    return f"; its {says}" if says else ""


def _read_others(picture: Picture, position: Position) -> tuple[tuple[str, bool], ...]:
    """Describe other threads, each with whether a summary can do without it."""
    dump, stacks = position.last_dump, picture.stacks
    trains = find_thread(dump, stacks, picture.comm_threads) if dump else None
    if dump is None or trains is None or not _waits_for_thread(position, trains):
        return ()
    before = _threads_before(position)
    found = [
        (thread, known)
        for thread in dump.threads
        if thread is not trains
        and (known := stacks.get(thread.digest)) is not None
        and (known.own or known.frame_class in SAID_WAITS)
    ]
    # Main waits for the thread that trains in its place: what it does is quoted in any case.
    found.sort(key=lambda item: (not item[0].main, _tells_little(item[1])))
    return tuple(
        (_describe(thread, known, before), thread.owns_gil or known.frame_class in IDLE)
        for thread, known in found[:MAX_QUOTED_THREADS]
    )


def _waits_for_thread(position: Position, trains: ThreadDump) -> bool:
    """Tell whether it may wait for another thread, or main for the one that trains."""
    by_frames = position.frame_class in (FrameClass.LOCK, FrameClass.THREAD)
    may_wait = by_frames or position.wait.wait_class == "lock"
    return not trains.main or (position.asleep and may_wait)


def _threads_before(position: Position) -> frozenset[tuple[str, str]]:
    dumps: tuple[RankDump, ...] = position.evidence.dumps[-2:-1]
    return frozenset((thread.name, thread.digest) for dump in dumps for thread in dump.threads)


def _tells_little(known: KnownStack) -> int:
    """Order a thread whose wait has a name before one in user code, and those idle last."""
    if known.frame_class in IDLE:
        return 2
    return 1 if known.frame_class is FrameClass.USER else 0


def _describe(thread: ThreadDump, known: KnownStack, before: frozenset[tuple[str, str]]) -> str:
    """Say "thread sender stays at log.py:12 in _send, waits for the network in getresponse()"."""
    name = "main thread" if thread.main else f"thread {clean(thread.name, 64)}"
    stays = "stays" if (thread.name, thread.digest) in before else "is"
    where = clean(known.reading.where) if known.reading else "an unknown place"
    return f"{name} {stays} at {where}{_say_call(known)}{_say_running(thread)}"


def _say_call(known: KnownStack) -> str:
    frames = known.stack.frames
    called = list(called_by_user(frames)) if known.own else []
    place = find_called(frames) if known.own else None
    waits = place.says if place else SAID_WAITS.get(known.frame_class, "")
    call = f"{clean(last_component(called[-1].function), 80)}()" if called else ""
    at = f" in {call} at {clean(name_line(called[-1]), 80)}" if called else ""
    return f", {waits}{at}" if waits else f",{at}" if at else ""


def _say_running(thread: ThreadDump) -> str:
    if thread.owns_gil:
        return ", holds the GIL"
    return ", on a CPU" if thread.active else ""
