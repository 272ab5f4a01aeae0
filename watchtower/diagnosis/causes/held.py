"""Ranks that cannot run, whatever their code does: stopped, traced, frozen, in state D.

One sample in state D is ordinary disk access; two dumps and the report must agree. A frozen cgroup
shows as state D in version 1, as ordinary sleep in version 2, and in new kernels in the very call
it was caught in: the agent asks the cgroup. If all ranks are held, the job is suspended: that is a
status, not a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from watchtower.diagnosis.accusation import CANDIDATE, MAX_QUOTED, Accusation, Doubt, Reason, Tier
from watchtower.diagnosis.advice import name_tracer
from watchtower.diagnosis.domain import IN_GPU_DRIVER, Line
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Place, Position
from watchtower.diagnosis.reasons import peers_reason, stack_reason, step_reason
from watchtower.diagnosis.words import write_at
from watchtower.evidence.kernel import find_mounts, is_remote
from watchtower.wire.report import ProcessState
from watchtower.wire.verdict import Cause, Domain
from watchtower.writing.text import format_duration, join_sentences

WHOM = (Line(Domain.OPERATOR),)
WHOM_OF_IO = (
    IN_GPU_DRIVER,
    Line(
        Domain.USER_CODE,
        "the rank waits for its own child to start",
        lambda rank: rank.wait_class == "child",
    ),
    Line(Domain.STORAGE, "any other wait in state D"),
)

ALL_BLOCKED = Doubt(
    "all_blocked", CANDIDATE, "all ranks on several nodes are blocked, so they may share the cause"
)

CONTINUE_IT = "on {node}: `kill -CONT {pid}` resumes the process; nothing is lost"
FIND_WHO_STOPPED = (
    "find what stopped it on {node}: Ctrl-Z in a shell, a preemption by the scheduler, or a tool"
)
DETACH_TRACER = "on {node}: detach or end {tracer}; the rank then continues"
NOT_THE_CODE = "the training code is not the cause"
FIND_CGROUP = (
    "on {node}: `cat /proc/{pid}/cgroup` names the frozen cgroup; thaw it with `docker unpause`, "
    "`scontrol resume` or cgroup.freeze"
)
NO_SIGNAL_REACHES = (
    "pid {pid} receives no signal until its cgroup is thawed; on cgroup v1, not even SIGKILL"
)
RESTART_WITHOUT = "restart the job without {node}"

BLOCKED = "read the kernel log of {node} and test the storage it uses"
BLOCKED_MOUNTS = "find out on {node} which file system does not answer: {stat_mounts}"
BLOCKED_FUSE = "the server process of {mount} on {node} does not answer: check that process first"
BLOCKED_NFS = "test {mount} on {node} and its server: `timeout 10 stat {mount_path}`"
BLOCKED_GPU = (
    "read the kernel log of {node} for Xid lines: the process is blocked in the GPU driver"
)
BLOCKED_IO = (
    "read the kernel log of {node} for disk errors, and check the device's queue with `iostat -x 1`"
)
BLOCKED_CHILD = "a child process of pid {pid} has not run exec yet: check that child on {node}"
BLOCKED_ON = {
    "fuse": BLOCKED_FUSE,
    "nfs": BLOCKED_NFS,
    "gpu": BLOCKED_GPU,
    "io": BLOCKED_IO,
    "child": BLOCKED_CHILD,
}
"""Advice by the class of the kernel wait; `BLOCKED` for any other."""


@dataclass(frozen=True, slots=True)
class HeldState:
    """One row of the table."""

    cause: Cause
    holds: Callable[[Position], bool]
    weight: float
    advice: tuple[str, ...]


def _is_stopped(position: Position) -> bool:
    return position.place is Place.CANNOT_RUN and position.state is ProcessState.STOPPED


def _is_traced(position: Position) -> bool:
    return position.place is Place.CANNOT_RUN and position.state is ProcessState.TRACED


def _is_watched(position: Position) -> bool:
    attached = position.kernel.tracer_pid != 0 and position.state is not ProcessState.STOPPED
    return attached and position.place in (Place.ELSEWHERE, Place.UNSEEN) and not position.moving


def _is_frozen(position: Position) -> bool:
    return position.is_frozen


def _stays_uninterruptible(position: Position) -> bool:
    return position.stays_uninterruptible and not position.waits


_TRACED = (DETACH_TRACER, NOT_THE_CODE)

STATES = (
    HeldState(Cause.PROCESS_STOPPED, _is_stopped, 0.9, (CONTINUE_IT, FIND_WHO_STOPPED)),
    HeldState(Cause.PROCESS_TRACED, _is_traced, 0.9, _TRACED),
    # A tracer that is attached but lets the process run may only watch.
    HeldState(Cause.PROCESS_TRACED, _is_watched, 0.7, _TRACED),
    HeldState(Cause.PROCESS_FROZEN, _is_frozen, 0.9, (FIND_CGROUP, NO_SIGNAL_REACHES)),
    HeldState(Cause.UNINTERRUPTIBLE_IO, _stays_uninterruptible, 0.85, (BLOCKED, RESTART_WITHOUT)),
)
"""If a cause has several rows, the first that holds any rank counts."""


def find_held(cause: Cause, picture: Picture) -> Accusation | None:
    """Accuse the ranks that are held in this way while others are not."""
    for row in STATES:
        if row.cause is cause:
            held = [item for item in picture.live if row.holds(item)]
            if held:
                return None if _is_suspended(cause, picture, held) else _accuse(row, picture, held)
    return None


def _is_suspended(cause: Cause, picture: Picture, held: Sequence[Position]) -> bool:
    if cause is Cause.PROCESS_FROZEN:
        return len(held) == len(picture.live)
    return cause is not Cause.UNINTERRUPTIBLE_IO and picture.is_suspended


def _accuse(row: HeldState, picture: Picture, held: Sequence[Position]) -> Accusation:
    state = _write_state(row.cause, held[0])
    reasons: list[Reason] = []
    for item in held[:MAX_QUOTED]:
        text = f"rank {item.rank} {state}"
        reasons.append(Reason("process", row.weight, (item.rank,), text))
        reasons += step_reason(picture, item)
        reasons += stack_reason(item, 0.0)  # where a held process happens to be proves nothing
    advice, is_io = row.advice, row.cause is Cause.UNINTERRUPTIBLE_IO
    if is_io:
        advice = (_advise_blocked(held[0]), *advice[1:])
    return Accusation(
        cause=row.cause,
        tier=Tier.CANNOT_ANSWER,
        suspects=tuple(held),
        reasons=(*reasons, *peers_reason(picture, held)),
        doubts=(ALL_BLOCKED,) if is_io and _is_every_node(picture, held) else (),
        why=lambda position: join_sentences(
            f"{state}{write_at(position)}",
            f"it has made no step for {format_duration(position.age_s)}",
        ),
        advice=advice,
    )


def _write_state(cause: Cause, first: Position) -> str:
    """Return why a rank cannot run: "is stopped (state T: SIGSTOP or job control)"."""
    if cause is Cause.PROCESS_STOPPED:
        return "is stopped (state T: SIGSTOP or job control)"
    if cause is Cause.PROCESS_TRACED:
        return f"is traced by {name_tracer(first)}"
    if cause is Cause.PROCESS_FROZEN:
        return f"is {first.wait.text}"
    wait = f", {first.wait.text}" if first.wait.text else ""
    return f"is in uninterruptible sleep (state D){wait}"


def _advise_blocked(first: Position) -> str:
    wait_class = first.wait.wait_class
    mounts = find_mounts(first.kernel, wait_class)
    if len(mounts) > 1 and is_remote(mounts[0]):
        return BLOCKED_MOUNTS
    return BLOCKED_ON.get(wait_class, BLOCKED)


def _is_every_node(picture: Picture, held: Sequence[Position]) -> bool:
    return len(held) == len(picture.live) and len({item.evidence.node for item in held}) > 1
