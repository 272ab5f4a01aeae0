"""Finds the mount that a thread is blocked on. The table is data (`facts/file_systems.toml`)."""

from __future__ import annotations

from typing import NamedTuple

from watchtower.evidence.facts import read_facts
from watchtower.evidence.patterns import TextPattern, whole
from watchtower.wire.bounds import MAX_NAME
from watchtower.wire.dumps import KernelWait, Mount
from watchtower.wire.report import ProcessState
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
