"""Finds out what blocks one rank: its kernel wait, and those of the children that it waits for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from watchtower.diagnosis.bystanders import Worker, find_children
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.evidence.frame_class import FrameClass
from watchtower.evidence.kernel import FROZEN, HELD, classify_wait
from watchtower.evidence.mounts import find_mount, is_storage, name_storage
from watchtower.wire.dumps import ChildDump, KernelWait, RankDump
from watchtower.wire.report import ProcessState
from watchtower.wire.sockets import read_ends

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
        """Return whether it calls a client of outside services, and no address is known."""
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
