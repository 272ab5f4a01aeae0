"""Reads what a thread waits for in the kernel, and the mount that it is blocked on.

The tables are data (`facts/kernel_waits.toml`, `facts/file_systems.toml`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from watchtower.evidence.facts import TextPattern, read_facts, whole
from watchtower.wire.bounds import MAX_NAME
from watchtower.wire.dumps import KernelWait, Mount
from watchtower.wire.report import ProcessState
from watchtower.wire.sockets import is_listening, without_answer
from watchtower.writing.text import clean

CLUSTER, NO_STORAGE = "cluster", "none"
"""Scopes of file systems: the same storage on every node, and none to wait for."""

ANY_STORAGE = frozenset({"", "file", "io"})
"""Classes of waits that fit each file system: a read of a network file system also waits for a page
of memory (`folio_wait_bit`), as a read of a disk does."""

WITHOUT_STATE = frozenset({"fuse", "nfs"})
"""Classes of waits that suffice without state D: a thread may wait for FUSE in ordinary sleep."""


class FileSystem(NamedTuple):
    """A kind of file system."""

    kind: TextPattern
    scope: str
    """Which nodes use the same storage: "cluster", "node" or "none"."""
    wait: str
    """Class of the waits for it: "nfs", "fuse", "io"."""


_FILE_SYSTEMS = tuple(
    FileSystem(whole(entry["kind"]), entry["scope"], entry["wait"])
    for entry in read_facts("file_systems")["file_system"]
)
_DISK = FileSystem(whole(".*"), "node", "io")


def file_system_of(mount: Mount) -> FileSystem:
    """Return the file system of a mount; a local disk if the table does not have its kind."""
    return next((each for each in _FILE_SYSTEMS if each.kind.matches(mount.kind)), _DISK)


def is_storage(mount: Mount) -> bool:
    """Return whether a file call on this mount may wait for storage, and not only for memory."""
    return file_system_of(mount).scope != NO_STORAGE


def find_mounts(wait: KernelWait, wait_class: str) -> tuple[Mount, ...]:
    """Return the mounts that a thread may be blocked on, those of a network first.

    `wait_class` is the class of its wait. Mounts of one storage count as one.
    """
    if wait.state is not ProcessState.UNINTERRUPTIBLE and wait_class not in WITHOUT_STATE:
        return ()
    fitting = {_storage_of(each): each for each in reversed(wait.mounts) if _fits(each, wait_class)}
    return tuple(sorted(fitting.values(), key=lambda each: (not is_remote(each), each.point)))


def find_mount(wait: KernelWait, wait_class: str) -> Mount | None:
    """Return the only mount that a thread can be blocked on; None if it is not known."""
    found = find_mounts(wait, wait_class)
    return found[0] if len(found) == 1 else None


def is_remote(mount: Mount) -> bool:
    """Return whether a server or a program must answer a call on this mount."""
    return file_system_of(mount).wait in WITHOUT_STATE


def describe_mount(mount: Mount) -> str:
    """Return "the mount /data (nfs1:/data)"."""
    return f"the mount {clean(mount.point, 120)} ({clean(mount.source, 120)})"


def name_storage(mount: Mount, node: str) -> str:
    """Return a name that is equal for the same storage.

    "nfs1:/data" is the same storage on every node. Storage of one node has the node's name:
    "gpu-042:/dev/nvme0n1p1", or the mount point if the source is not a device.
    """
    storage = _storage_of(mount)
    is_shared = file_system_of(mount).scope == CLUSTER
    return clean(storage if is_shared else f"{node}:{storage}", MAX_NAME)


def _fits(mount: Mount, wait_class: str) -> bool:
    known = file_system_of(mount)
    return known.scope != NO_STORAGE and wait_class in ANY_STORAGE | {known.wait}


def _storage_of(mount: Mount) -> str:
    is_named = file_system_of(mount).scope == CLUSTER or mount.source.startswith("/dev/")
    return mount.source if is_named else mount.point


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitReading:
    """The kind of object that a thread waits for."""

    wait_class: str
    """"lock", "sleep", "file", "pipe", "network", "poll", ...; empty when not known."""
    text: str
    """Text after "rank 3 is", such as "blocked in read() on /mnt/shards/0042.tar"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _WaitPattern:
    wait_class: str
    wchan: TextPattern | None
    syscalls: frozenset[str]
    text: str


_TABLE = read_facts("kernel_waits")
_WAITS = tuple(
    _WaitPattern(
        wait_class=entry["class"],
        wchan=whole(entry["wchan"]) if "wchan" in entry else None,
        syscalls=frozenset(entry.get("syscalls", ())),
        text=entry["text"],
    )
    for entry in _TABLE["wait"]
)
_TARGETS = tuple((whole(entry["pattern"]), str(entry["class"])) for entry in _TABLE["target"])
HELD = frozenset({ProcessState.STOPPED, ProcessState.TRACED})
ASLEEP = frozenset({ProcessState.SLEEPING, ProcessState.UNINTERRUPTIBLE, ProcessState.IDLE})

FROZEN = "frozen"
"""Class of a task that is frozen by its cgroup."""

SOCKETS = frozenset({"network", "local"})
"""Kernel waits for the other end of a socket, on another node and on this one."""

WAITS_IN_C = SOCKETS | {"lock"}
"""Kernel waits of a library that waits for another rank: a socket, or a futex."""

FROM_OWN_NODE = frozenset({"pipe", "local", "child", "poll"})
"""Kernel waits for another process of the node: for what it sends, or for its end."""

MAY_BE_FOR_RANKS = WAITS_IN_C | {"gpu", ""}
"""Kernel waits of a rank that may be in a call for other ranks as well."""

STORAGE = frozenset({"file", "io", "nfs", "fuse"})
"""Kernel waits for storage, on this node or behind a server."""

PROCESSES = FROM_OWN_NODE | {"lock"}
"""Kernel waits that may be for a thread or a child of the same process."""

_NARROWED = frozenset({"file", "pipe", "network", "poll"})
"""Classes of calls that accept any descriptor. The target of the descriptor decides the class."""


@lru_cache(maxsize=4096)
def classify_wait(wait: KernelWait) -> WaitReading:
    """Return what the thread waits for; empty strings if the kernel's data do not show it."""
    if wait.frozen:
        return WaitReading(wait_class=FROZEN, text="frozen by its cgroup")
    pattern = _find_pattern(wait)
    call = f"{clean(wait.syscall, 32)}()" if wait.syscall else clean(wait.wchan, 64)
    if mount := find_mount(wait, pattern.wait_class if pattern else ""):
        return _read_blocked_on_mount(wait, mount, call)
    if pattern is None:
        return WaitReading(wait_class="", text="")
    text = pattern.text.format(call=call)
    if not wait.target:
        return WaitReading(wait_class=pattern.wait_class, text=text)
    if not name_target(wait):
        return WaitReading(wait_class=_narrow(pattern.wait_class, wait.target), text=text)
    return WaitReading(
        wait_class=_narrow(pattern.wait_class, wait.target), text=f"{text} on {name_target(wait)}"
    )


def _read_blocked_on_mount(wait: KernelWait, mount: Mount, call: str) -> WaitReading:
    """Read a wait for the storage of a mount. The kernel function alone may be that of a disk."""
    wait_class = file_system_of(mount).wait
    text = next(each.text for each in _WAITS if each.wait_class == wait_class)
    waits = text.format(call=call) if call else text.partition(", in ")[0]
    place = name_target(wait) or describe_mount(mount)
    return WaitReading(wait_class=wait_class, text=f"{waits} on {place}")


def name_target(wait: KernelWait) -> str:
    """Return the file or socket that a thread is blocked on; empty if not known.

    An epoll or event descriptor refers to other descriptors, so that it cannot be checked.
    """
    target = without_answer(wait.target)
    return "" if target.startswith("anon_inode:") else clean(target, 120)


def _find_pattern(wait: KernelWait) -> _WaitPattern | None:
    for pattern in _WAITS:
        if pattern.wchan is not None and pattern.wchan.matches(wait.wchan):
            return pattern
    return next((pattern for pattern in _WAITS if wait.syscall in pattern.syscalls), None)


def _narrow(wait_class: str, target: str) -> str:
    # A loop that watches a listening socket may wait for anything else as well.
    if wait_class not in _NARROWED or (wait_class == "poll" and is_listening(target)):
        return wait_class
    return next((name for pattern, name in _TARGETS if pattern.matches(target)), wait_class)
