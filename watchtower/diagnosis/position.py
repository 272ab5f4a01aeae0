"""The position of one rank: what its evidence says about where it is.

A rank that did not answer is `UNSEEN`: it may be the one that all others wait for, so no cause may
treat it as innocent. A lower step accuses no rank: neighbours in a ring stall one step earlier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from watchtower.evidence.case import OF_FILES, Case, Presence, RankEvidence
from watchtower.evidence.frames import FrameClass, StackReading
from watchtower.evidence.kernel import ASLEEP, FROZEN, HELD, WaitReading, classify_wait
from watchtower.evidence.movement import (
    BUSY_CORES,
    ONE_THREAD_CORES,
    MovementReading,
    read_movement,
    uses_a_core,
)
from watchtower.evidence.native import (
    at_training_thread,
    find_hidden_call,
    rests,
    waits_and_works,
    waits_for_device,
)
from watchtower.evidence.threads import (
    CommThreads,
    KnownStack,
    WaitPlace,
    find_thread,
    find_wait_place,
    kernel_wait_of,
    serves_clients,
    waits_beside,
)
from watchtower.wire.dumps import KernelWait, NativePlace, RankDump
from watchtower.wire.report import ProcessState
from watchtower.wire.sockets import read_unanswered
from watchtower.wire.stacks import Frame, Stack


class Place(Enum):
    """Where a rank is, seen from the call that the job should be in."""

    CANNOT_RUN = "cannot run"
    """Stopped or traced: whatever its stack says, it cannot go on."""
    ABSENT = "absent"
    """Its process has ended, or was never seen."""
    INSIDE = "inside a call"
    """Inside a collective or set-up call: it waits for other ranks."""
    CALL_UNKNOWN = "waits, call unknown"
    """It waits, and nothing names the call: it waits for its device, or by inference, because most
    ranks stay at the same place (see `majority`)."""
    ELSEWHERE = "elsewhere"
    """It answered, and it is somewhere else."""
    UNSEEN = "unseen"
    """No stack, a silent node, or a stack that shows both."""


LIVE_PLACES = (Place.INSIDE, Place.ELSEWHERE, Place.CANNOT_RUN, Place.CALL_UNKNOWN)
"""A tuple: to hash an enum's member takes longer than to compare it with four."""


class Shape(Enum):
    """How the stacks of two dumps, taken a moment apart, compare."""

    SAME = "same"
    NEAR = "near"
    """The user's frames are the same, what they call differs: a loop around a timeout."""
    CHANGED = "changed"
    UNKNOWN = "unknown"
    """Fewer than two stacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """One rank, read. What others ask of every rank is computed once."""

    rank: int
    """Global rank."""
    evidence: RankEvidence
    place: Place
    state: ProcessState
    kernel: KernelWait
    wait: WaitReading
    shape: Shape
    movement: MovementReading
    active: bool
    """Its main thread was on a CPU in the last dump."""
    asleep: bool
    """Its main thread waits in the kernel."""
    waits_for_device: bool
    """Its training thread waits for its device, asleep or not.

    A device waits for the devices of other ranks, so the rank waits for other ranks, whatever its
    Python line is. It also waits if its own device never ends.
    """
    step: int | None
    """Step of the last heartbeat, null when none is known."""
    age_s: float
    """Seconds since its last step, as far as known."""
    last_dump: RankDump | None
    """Newest dump, with or without a stack."""
    stack: Stack | None = None
    reading: StackReading | None = None
    frame_class: FrameClass = FrameClass.NONE
    """Class of its stack, NONE without one."""
    lingers: bool = False
    """Two dumps show it in one call of one of the user's functions, on whichever of its lines."""
    branches: bool = False
    """Two dumps show it in two functions of the program that a third one calls."""
    came_out: bool = False
    """The dump before found it in a call that waits for other ranks; the last one does not."""
    is_waited_beside: bool = False
    """Another thread of its process waits in a collective: of an asynchronous checkpoint, say."""
    native: NativePlace | None = None
    """Where its training thread is in native code, by the last dump."""

    @property
    def moving(self) -> bool:
        """Whether its process tree computes, or reads or writes storage."""
        return self.movement.computes or self.movement.stores

    @property
    def transfers(self) -> bool:
        """Whether its process tree moves data through the network."""
        return self.movement.transfers

    @property
    def works(self) -> bool:
        """Whether two dumps show that it goes on, and it moves.

        What it does between two steps may take long: an evaluation, a rollout. A loop that nothing
        ends stays in one function, and the functions that this calls, and never waits.
        """
        moves = self.moving or self.transfers
        return moves and (self.branches or waits_and_works(self.evidence.dumps))

    @property
    def waits(self) -> bool:
        """Whether it waits for other ranks, seen or presumed."""
        return self.place is Place.INSIDE or self.place is Place.CALL_UNKNOWN

    @property
    def presumed(self) -> bool:
        """Whether it waits only by inference."""
        return self.place is Place.CALL_UNKNOWN and not self.waits_for_device

    @property
    def unanswered(self) -> str:
        """The address that does not answer its connection; empty if there is none."""
        return read_unanswered(self.kernel.target)

    @property
    def serves_clients(self) -> bool:
        """Whether its training thread waits for clients."""
        settings = (each for dump in self.evidence.dumps for each in dump.settings)
        return serves_clients(self.frame_class, self.kernel, settings)

    @property
    def is_missing(self) -> bool:
        """Whether its process was never seen."""
        return self.evidence.presence is Presence.MISSING

    @property
    def of_files(self) -> bool:
        """Whether it is known only from files, so that nothing was measured of its process."""
        return self.evidence.presence in OF_FILES

    @property
    def is_silent(self) -> bool:
        """Whether only the silence of its own output shows where it is."""
        return self.evidence.presence is Presence.QUIET

    @property
    def is_frozen(self) -> bool:
        """Return whether its cgroup keeps it from running."""
        return self.wait.wait_class == FROZEN

    @property
    def stays_uninterruptible(self) -> bool:
        """Return whether two dumps and the report show it in state D, and its cgroup is not frozen.

        One sample in state D is ordinary disk access.
        """
        return stays_in_d(self.evidence.dumps, self.state) and not self.is_frozen

    @property
    def spins(self) -> bool:
        """Return whether its main thread computes without a pause in every sample."""
        if self.asleep or self.waits_for_device:
            return False
        return uses_a_core(self.evidence.movement, always_runs=self.always_runs)

    @property
    def always_runs(self) -> bool:
        """Return whether every sample finds its main thread running, or ready to run."""
        states = [dump.kernel.state for dump in self.evidence.dumps] + [self.state]
        return all(state is ProcessState.RUNNING for state in states)

    @property
    def may_busy_wait(self) -> bool:
        """Return whether it may be waiting although it uses CPU: one thread spins at one unchanged
        line, and no data moves. MPI polls like this, and a long computation in C looks the same.
        """
        cores = self.evidence.movement.cpu_cores
        is_one_thread = cores < ONE_THREAD_CORES and (self.spins or self.always_runs)
        return self.shape is Shape.SAME and is_one_thread and not self.movement.moves_data

    @property
    def is_motionless(self) -> bool:
        """Return whether nothing of it moves. On a busy machine a rank that computes hardly uses
        CPU, but it is not asleep.
        """
        runs = self.active or self.state is ProcessState.RUNNING
        return not (self.moving or self.transfers or runs)

    @property
    def wait_place(self) -> WaitPlace | None:
        """The object that it waits for while it sleeps; null when the tables do not know it."""
        if not self.asleep or self.stack is None:
            return None
        return find_wait_place(self.stack.frames, self.wait, self.kernel)

    @property
    def unchanged(self) -> bool:
        """Return whether two dumps show it at the same place."""
        return self.shape is Shape.SAME or (self.shape is Shape.NEAR and self.asleep)

    @property
    def live(self) -> bool:
        """Return whether its process is there."""
        return self.place in LIVE_PLACES or (
            self.place is Place.UNSEEN
            and self.evidence.presence in (Presence.LIVE, Presence.WROTE, Presence.QUIET)
        )

    @property
    def has_bad_loss(self) -> bool:
        """Return whether its training loop reported a NaN or infinite loss."""
        return self.evidence.beat is not None and self.evidence.beat.loss_is_bad

    @property
    def phase(self) -> str:
        """Phase word of its heartbeat page."""
        return "" if self.evidence.beat is None else self.evidence.beat.phase

    def moved_to(self, place: Place) -> Position:
        """Return the same position at another place."""
        return self if place is self.place else replace(self, place=place)

    @property
    def has_log(self) -> bool:
        """Whether a dump has its collective log."""
        return any(dump.collectives and dump.collectives.logs for dump in self.evidence.dumps)

    @property
    def log_failure(self) -> str:
        """Why its collective log was read in no dump; empty if it was, or if it has none."""
        found = [dump.collectives for dump in self.evidence.dumps if dump.collectives is not None]
        if any(each.logs or not each.failure for each in found):
            return ""
        return found[-1].failure if found else ""


def take_position(
    case: Case,
    evidence: RankEvidence,
    stacks: Mapping[str, KnownStack],
    comm_threads: CommThreads | None = None,
) -> Position:
    """Read one rank by itself; `comm_threads` are threads known to make the job's collectives."""
    threads = [find_thread(dump, stacks, comm_threads) for dump in evidence.dumps]
    known = [thread for thread in threads if thread is not None and thread.digest in stacks]
    thread = known[-1] if known else None
    read = stacks[thread.digest] if thread else None
    kernel = kernel_wait_of(thread, _last_kernel_wait(evidence))
    if any(thread is not None and thread.native is not None for thread in threads):
        placed = map(at_training_thread, evidence.dumps, threads)
        evidence = evidence.with_dumps(tuple(placed))
    last_dump = evidence.dumps[-1] if evidence.dumps else None
    state, beat = _last_state(evidence, kernel), evidence.beat
    active, in_device = thread is not None and thread.active, waits_for_device(evidence.dumps)
    position = Position(
        rank=evidence.rank,
        evidence=evidence,
        place=Place.UNSEEN,
        state=state,
        kernel=kernel,
        wait=classify_wait(kernel),
        shape=_compare([stacks[item.digest] for item in known[-2:]]),
        movement=read_movement(
            evidence.movement,
            case.moving_cpu_cores,
            waits=in_device or rests(evidence.dumps) or stays_in_d(evidence.dumps, state),
        ),
        active=active,
        asleep=state in ASLEEP and not active,
        waits_for_device=in_device,
        step=beat.step if beat and beat.step >= 0 else None,
        age_s=beat.age_s if beat else case.stalled_for_s,
        last_dump=last_dump,
        stack=read.stack if read else None,
        reading=read.reading if read else None,
        frame_class=read.reading.frame_class if read and read.reading else FrameClass.NONE,
        lingers=_lingers([stacks[item.digest].own for item in known[-2:]]),
        branches=_branches([stacks[item.digest] for item in known[-2:]]),
        came_out=_came_out([stacks[item.digest] for item in known[-2:]]),
        is_waited_beside=thread is not None and waits_beside(thread, evidence.dumps[-1], stacks),
        native=last_dump.native if last_dump else None,
    )
    position = _with_hidden_call(position)
    return position.moved_to(_find_place(position))


def _with_hidden_call(position: Position) -> Position:
    """Return the position in the call that its native place shows below a line of the program.

    `work.wait()` has no frame of its own.
    """
    reading = position.reading
    if reading is None or not position.asleep or not position.frame_class.traits.hides_any_call:
        return position
    name = find_hidden_call(position.native, position.wait.wait_class)
    if not name:
        return position
    called = replace(reading, frame_class=FrameClass.COLLECTIVE, what=name, what_at=reading.at)
    return replace(position, reading=called, frame_class=FrameClass.COLLECTIVE)


def stays_in_d(dumps: Sequence[RankDump], state: ProcessState) -> bool:
    """Return whether the last two dumps and the report, which has `state`, show it in state D."""
    seen = [dump.kernel.state for dump in dumps[-2:]]
    return len(seen) == 2 and {*seen, state} == {ProcessState.UNINTERRUPTIBLE}


def _last_kernel_wait(evidence: RankEvidence) -> KernelWait:
    if evidence.dumps:
        return evidence.dumps[-1].kernel
    return KernelWait(state=evidence.state, wchan=evidence.wchan)


def _last_state(evidence: RankEvidence, kernel: KernelWait) -> ProcessState:
    """Prefer the report: it is newer than any dump of the case."""
    return kernel.state if evidence.state is ProcessState.OTHER else evidence.state


def _compare(stacks: list[KnownStack]) -> Shape:
    if len(stacks) < 2:
        return Shape.UNKNOWN
    before, after = stacks
    if before.stack.digest == after.stack.digest:
        return Shape.SAME
    return Shape.NEAR if before.own and before.own == after.own else Shape.CHANGED


def _lingers(own: list[tuple[Frame, ...]]) -> bool:
    if len(own) < 2 or not all(own):
        return False
    if own[0] is own[1]:
        return True
    functions = [(frames[0].function, frames[0].file) for frames in own]
    return own[0][1:] == own[1][1:] and functions[0] == functions[1]


def _branches(stacks: list[KnownStack]) -> bool:
    """Return whether two stacks are in two functions that were called by the same one."""
    if len(stacks) < 2 or stacks[0] is stacks[1]:
        return False
    before, after = (
        [(frame.function, frame.file) for frame in reversed(item.own or item.stack.frames)]
        for item in stacks
    )
    differ = (one != other for one, other in zip(before, after, strict=False))
    return before[:1] == after[:1] and any(differ)  # a thread may have no frame


def _came_out(stacks: list[KnownStack]) -> bool:
    waits = [item.reading and item.reading.frame_class.traits.waits_for_ranks for item in stacks]
    return waits == [True, False]


def _find_place(position: Position) -> Place:
    presence = position.evidence.presence
    if presence is Presence.MISSING:
        return Place.ABSENT
    if presence.is_out_of_sight and not position.evidence.dumps:
        return Place.UNSEEN  # else what was seen of it during this stall is still evidence
    if presence is Presence.ENDED or position.state in {ProcessState.ZOMBIE, ProcessState.GONE}:
        return Place.ABSENT
    return Place.CANNOT_RUN if position.state in HELD else _find_live_place(position)


def _find_live_place(position: Position) -> Place:
    frame_class = position.frame_class
    if frame_class.traits.waits_for_ranks:
        return Place.INSIDE
    if position.waits_for_device:
        return Place.CALL_UNKNOWN
    if position.reading is None:
        return Place.UNSEEN
    if frame_class is FrameClass.BACKWARD:
        return _place_in_backward(position)
    if frame_class is FrameClass.DEVICE:
        return Place.INSIDE if position.unchanged else Place.UNSEEN
    return Place.ELSEWHERE


def _place_in_backward(position: Position) -> Place:
    """Distinguish a rank that waits inside DDP's reducer from one that computes gradients.

    No Python frame names the collective there, so only a rank that is asleep, idle and unchanged
    waits; one that computes is behind, anything between is left open.
    """
    idle = position.asleep and not position.moving
    if idle and position.unchanged:
        return Place.INSIDE
    uses_cpu = position.evidence.movement.cpu_cores >= BUSY_CORES
    busy = position.active or (position.movement.computes and uses_cpu)
    return Place.ELSEWHERE if busy else Place.UNSEEN
