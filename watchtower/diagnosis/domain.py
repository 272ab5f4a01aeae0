"""Whom to call about a verdict, what blocks a rank, and what a job may share with others.

Each cause has lines, and the first that holds for a rank counts.

A cause alone does not decide it: a rank that waits for a batch may wait for a file server, for its
own child, or for a service outside the job. If the evidence does not show it, the answer is
`unknown`. docs/verdicts.md has the lines of all causes in one table.

A mount, node or address that holds up a job is read from the evidence of this job alone, so that it
does not depend on which other jobs are there. Jobs with the same name for it are one outage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from watchtower.diagnosis.bystanders import Worker, find_children
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.evidence.frames import FrameClass
from watchtower.evidence.kernel import (
    FROZEN,
    HELD,
    classify_wait,
    find_mount,
    is_storage,
    name_storage,
)
from watchtower.evidence.threads import find_called
from watchtower.wire.bounds import MAX_NAME
from watchtower.wire.dumps import ChildDump, KernelWait, RankDump
from watchtower.wire.report import ProcessState
from watchtower.wire.sockets import read_ends
from watchtower.wire.verdict import ADDRESS, MOUNT, NODE, PLACES, Domain, SharedCause
from watchtower.writing.text import clean

NETWORK_STORAGE = frozenset({"fuse", "nfs"})
"""Classes of waits for a network or user-space file system."""

NOT_STORAGE = frozenset({"gpu", "child", FROZEN})
"""Classes of waits in state D that are not waits for storage."""

BETWEEN_PROCESSES = frozenset({"pipe", "local"})
"""Classes of waits for another process of the node."""

_NOT_FILES = ("/dev/", "/proc/", "/sys/")


@dataclass(frozen=True)
class Job:
    """The job of these ranks. (No slots: the addresses are computed once, if they are needed.)"""

    picture: Picture

    @cached_property
    def addresses(self) -> frozenset[str]:
        """Addresses of its ranks: local ends of sockets; both ends of sockets in collectives."""
        found: set[str] = set()
        for item in self.picture.by_rank.values():
            ends = read_ends(item.kernel.target) if item.kernel.target else None
            if ends is not None:
                found.add(ends.local)
                found.update((ends.remote,) if item.frame_class.traits.waits_for_ranks else ())
        return frozenset(found)


@dataclass(frozen=True)
class BlockedRank:
    """One rank that holds up the job. (No slots: what it waits for is computed once and kept.)"""

    job: Job
    position: Position

    @cached_property
    def wait_class(self) -> str:
        """Class of its own wait; empty if it does not sleep."""
        return self.position.wait.wait_class if self.position.asleep else ""

    @cached_property
    def _children(self) -> Worker | tuple[ChildDump, ...] | None:
        return find_children(self.job.picture, self.position)

    @property
    def worker(self) -> Worker | None:
        """The worker process that it waits for."""
        return self._children if isinstance(self._children, Worker) else None

    @cached_property
    def awaited(self) -> tuple[ChildDump, ...]:
        """The children that it may wait for."""
        if isinstance(self._children, Worker):
            return (self._children.child,)
        dump = self.position.last_dump
        if self._children is None and dump is not None and self.wait_class in BETWEEN_PROCESSES:
            return tuple(c for c in dump.children if not _waits_for_work(c, dump.kernel.target))
        return self._children or ()

    @cached_property
    def _of_children(self) -> tuple[tuple[KernelWait, str], ...]:
        return tuple((c.kernel, classify_wait(c.kernel).wait_class) for c in self.awaited)

    @cached_property
    def waits(self) -> tuple[tuple[KernelWait, str], ...]:
        """Its own wait and those of the children it may wait for, each with its class."""
        return ((self.position.kernel, self.wait_class), *self._of_children)

    @property
    def on_storage(self) -> bool:
        """Return whether storage that does not answer blocks it.

        One sample of a rank in state D is ordinary disk access.
        """
        stays = self.position.stays_uninterruptible and self.wait_class not in NOT_STORAGE
        is_known = stays or self.wait_class in NETWORK_STORAGE
        in_child = any(_waits_for_storage(*wait) for wait in self._of_children)
        return is_known or in_child or bool(self.dead_mounts)

    @cached_property
    def dead_mounts(self) -> frozenset[str]:
        """Mounts that its process, or a child of it, is blocked on in the last two dumps."""
        dumps, node = self.position.evidence.dumps[-2:], self.position.evidence.node
        if not dumps or self.position.movement.stores:
            return frozenset()
        found = set.intersection(*(set(_find_blocked(dump, node)) for dump in dumps))
        return frozenset(name for _, name in found)

    @property
    def in_file_call(self) -> bool:
        """Return whether a call on a file of a mount with storage blocks it."""
        return any(wait_class == "file" and _is_file(kernel) for kernel, wait_class in self.waits)

    @property
    def in_gpu_driver(self) -> bool:
        """Return whether the GPU driver blocks it."""
        return any(wait_class == "gpu" for _, wait_class in self.waits)

    @property
    def on_held_child(self) -> bool:
        """Return whether it waits for a child that is stopped, traced or frozen."""
        return any(each.kernel.state in HELD or each.kernel.frozen for each in self.awaited)

    @property
    def on_locked_worker(self) -> bool:
        """Return whether it waits for a worker that waits for a lock."""
        return self.worker is not None and self._of_children[0][1] == "lock"

    @property
    def on_child(self) -> bool:
        """Return whether it waits for a child: for its end, or at a pipe or socket."""
        return bool(self.awaited) or self.wait_class == "child"

    @property
    def on_fifo(self) -> bool:
        """Return whether it waits at a FIFO, which a program opens by its path."""
        kernel = self.position.kernel
        by_path = kernel.target.startswith("/") or kernel.syscall.startswith("open")
        return self.wait_class == "pipe" and by_path

    @cached_property
    def outside_addresses(self) -> frozenset[str]:
        """Addresses outside the job at whose sockets it waits."""
        if self.position.frame_class.traits.waits_for_ranks:
            return frozenset()
        ends = [read_ends(kernel.target) for kernel, name in self.waits if name == "network"]
        remotes = {each.remote for each in ends if each and not each.is_on_one_node}
        return frozenset(remotes - self.job.addresses)

    @property
    def on_outside_socket(self) -> bool:
        """Return whether it waits at a socket to an address outside the job."""
        return bool(self.outside_addresses)

    @property
    def in_client_call(self) -> bool:
        """Return whether it calls a client of outside services, and no address is known.

        A call whose purpose is known, such as `ray.get()`, may be of this node.
        """
        stack = self.position.stack
        if stack is not None and find_called(stack.frames):
            return False
        unknown = self.wait_class not in BETWEEN_PROCESSES and not any(
            read_ends(kernel.target) for kernel, _ in self.waits
        )
        return unknown and self.position.frame_class is FrameClass.NETWORK


def _waits_for_work(child: ChildDump, pipe: str) -> bool:
    """Return whether a child waits for a message itself, so that the rank does not wait for it."""
    wait_class = classify_wait(child.kernel).wait_class
    reads = child.kernel.syscall.startswith(("read", "recv")) and child.kernel.target != pipe
    return wait_class in {"poll", "lock"} or (wait_class in BETWEEN_PROCESSES and reads)


def _waits_for_storage(kernel: KernelWait, wait_class: str) -> bool:
    in_d = kernel.state is ProcessState.UNINTERRUPTIBLE and wait_class not in NOT_STORAGE
    return in_d or wait_class in NETWORK_STORAGE


def _is_file(kernel: KernelWait) -> bool:
    if not kernel.target.startswith("/") or kernel.target.startswith(_NOT_FILES):
        return False
    return not kernel.mounts or any(map(is_storage, kernel.mounts))


def _find_blocked(dump: RankDump, node: str) -> Iterator[tuple[int, str]]:
    """Yield each process that is blocked on a mount, and the name of the mount."""
    for pid, wait in [(dump.pid, dump.kernel), *((c.pid, c.kernel) for c in dump.children)]:
        if name := name_mount(wait, node):
            yield pid, name


def name_mount(wait: KernelWait, node: str) -> str:
    """Return the name of the only mount that a thread can be blocked on; empty if not known."""
    mount = find_mount(wait, classify_wait(wait).wait_class)
    return "" if mount is None else name_storage(mount, node)


MESSAGES = frozenset({"network", "local", "pipe"})
"""Classes of waits for a message from another process."""

MAX_JUDGED = 1024
"""Ranks that are judged, the first ones: more would not change whom to call."""


def _always(_: BlockedRank) -> bool:
    return True


class Line(NamedTuple):
    """One line of a cause."""

    domain: Domain
    evidence: str = ""
    """The predicate in words, for the documentation. Empty if the cause is enough."""
    holds: Callable[[BlockedRank], bool] = _always


def _has_slow_data(rank: BlockedRank) -> bool:
    """Return whether its data loader worker is in the code of the data set."""
    in_user_code = rank.worker is not None and bool(rank.worker.at) and not rank.worker.is_dead
    return in_user_code and _is_loading(rank) and not rank.on_locked_worker


def _is_loading(rank: BlockedRank) -> bool:
    return rank.position.frame_class is FrameClass.DATALOADER


def _is_in_own_code(rank: BlockedRank) -> bool:
    return rank.position.frame_class.traits.is_own_code and rank.wait_class not in MESSAGES


IN_GPU_DRIVER = Line(
    Domain.GPU,
    "the GPU driver blocks the rank or the child it waits for",
    lambda rank: rank.in_gpu_driver,
)
ON_STORAGE = Line(
    Domain.STORAGE,
    "state D in two samples, or a mount (NFS, FUSE, disk) without an answer, also in a child",
    lambda rank: rank.on_storage,
)
OUTSIDE_SOCKET = Line(
    Domain.NETWORK,
    "a socket to an address outside the job, also in a child",
    lambda rank: rank.on_outside_socket,
)
IN_OWN_CODE = Line(
    Domain.USER_CODE, "the rank is in the user's code, without a message", _is_in_own_code
)

BLOCKED_OUTSIDE = (
    IN_GPU_DRIVER,
    ON_STORAGE,
    Line(Domain.STORAGE, "a call on a file, also in a child", lambda rank: rank.in_file_call),
    OUTSIDE_SOCKET,
    Line(
        Domain.STORAGE,
        "a file system in which the rank works became full around the stall",
        lambda rank: bool(rank.job.picture.explained(rank.position.rank)),
    ),
)
BLOCKED_INSIDE = (
    Line(
        Domain.OPERATOR,
        "the rank waits for a child that is stopped, traced or frozen",
        lambda rank: rank.on_held_child,
    ),
    Line(Domain.DATA, "a data loader worker is in the code of the data set", _has_slow_data),
    Line(
        Domain.USER_CODE,
        "a pipe to the job's own child, or a wait for the end of a child",
        lambda rank: rank.on_child,
    ),
    Line(Domain.USER_CODE, "a FIFO that the program opened", lambda rank: rank.on_fifo),
    Line(
        Domain.NETWORK,
        "a call of a client for outside services (HTTP, S3, ...), without a known address",
        lambda rank: rank.in_client_call,
    ),
    Line(Domain.DATA, "the rank waits for a batch, and nothing more is known", _is_loading),
)
ELSEWHERE = (*BLOCKED_OUTSIDE, *BLOCKED_INSIDE)
"""The rank is elsewhere, and the others wait for it: what blocks the rank decides. From the deepest
to the nearest."""

PLACES_MISSING = Line(Domain.SCHEDULER)
"""Ranks or nodes of the job were never there."""

NO_CAUSE = (
    ON_STORAGE,
    Line(
        Domain.OPERATOR,
        "every rank is stopped, traced or frozen",
        lambda rank: rank.position.state in HELD or rank.position.is_frozen,
    ),
)
"""Of a verdict without a cause."""

LAST = Line(Domain.UNKNOWN, "everything else")


def find_domain(picture: Picture, lines: Sequence[Line], suspects: Sequence[Position]) -> Domain:
    """Return whom to call. Without suspects, all live ranks are judged.

    A job without ranks has launchers: then only a line that needs no rank can hold.
    """
    if picture.meeting is not None:
        return next((line.domain for line in lines if line.holds is _always), LAST.domain)
    return choose_line(picture, lines, suspects or picture.live).domain


def choose_line(picture: Picture, lines: Sequence[Line], positions: Sequence[Position]) -> Line:
    """Return the line whose domain holds for most of these ranks; of equal ones, the first.

    Ranks for which no line holds do not count if one holds for any other.
    """
    job = Job(picture)
    chosen = [_find_line(lines, BlockedRank(job, item)) for item in positions[:MAX_JUDGED]]
    known = [index for index in chosen if index is not None]
    if not known:
        return LAST
    count = Counter(lines[index].domain for index in known)
    return lines[min(known, key=lambda index: (-count[lines[index].domain], index))]


def _find_line(lines: Sequence[Line], rank: BlockedRank) -> int | None:
    return next((index for index, line in enumerate(lines) if line.holds(rank)), None)


def find_shared_cause(
    picture: Picture,
    lines: Sequence[Line],
    nodes: Iterable[str],
    accused: Sequence[Position],
) -> SharedCause | None:
    """Return what the job may share with others; null if nothing such is known.

    `lines` are those of the cause, which decide whom to call. `nodes`: those that every job on them
    has a part in. `accused` are the positions of the suspects, or of the candidates without any. A
    node comes before a mount, which comes before an address: the client of a file system waits at a
    socket, too. Without accused ranks, the mounts of all live ranks count.
    """
    if picture.case.holders and PLACES_MISSING in lines:
        jobs = sorted({picture.case.job, *(each.job for each in picture.case.holders)})
        return SharedCause(kind=PLACES, name=clean(", ".join(jobs), MAX_NAME))
    if name := min(filter(None, nodes), default=""):
        return SharedCause(kind=NODE, name=clean(name, MAX_NAME))
    job = Job(picture)
    blocked = (BlockedRank(job, item) for item in accused or picture.live)
    if name := _find_most_named(each.dead_mounts for each in blocked):
        return SharedCause(kind=MOUNT, name=name)
    if OUTSIDE_SOCKET not in lines:
        return None
    # A rank that still transfers data is not blocked.
    still = [item for item in accused if not item.transfers and not item.moving]
    if name := _find_most_named(BlockedRank(job, item).outside_addresses for item in still):
        return SharedCause(kind=ADDRESS, name=name)
    return None


def _find_most_named(names_of: Iterable[Iterable[str]]) -> str:
    """Return the name that most ranks have; of equal ones, the first in alphabetical order."""
    named = Counter(name for names in names_of for name in names)
    return min(named, key=lambda name: (-named[name], name), default="")
