"""Finds a mount or node that holds up a job and may hold up other jobs, too.

It is read from the evidence of one job alone, so that it does not depend on which other jobs are
there. Jobs with the same name for it can be grouped by comparing names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from watchtower.core.diagnosis.position import Position
from watchtower.core.reading.kernel import classify_wait
from watchtower.core.reading.mounts import CLUSTER, file_system_of, find_mount
from watchtower.core.text import clean
from watchtower.wire.bounds import MAX_NAME
from watchtower.wire.dumps import KernelWait, RankDump
from watchtower.wire.verdict import MOUNT, NODE, Cause, SharedCause, Suspect

OF_THE_NODE = frozenset({Cause.NODE_LOST, Cause.GPU_FAULT, Cause.GPU_DRIVER_STUCK})
"""Causes that every job on the node of the suspect has a part in."""


def find_shared_cause(
    suspects: Sequence[Suspect], blocked: Sequence[Position]
) -> SharedCause | None:
    """Return what the job may share with others; null if nothing such is known.

    `blocked` are the ranks that hold up the job. If they name several mounts, the mount that most
    of them name counts. Among equal numbers, and of several nodes, the first in alphabetical order
    counts.
    """
    nodes = sorted(item.node for item in suspects if item.cause in OF_THE_NODE and item.node)
    if nodes:
        return SharedCause(kind=NODE, name=clean(nodes[0], MAX_NAME))
    named = Counter(name for item in blocked for name in find_dead_mounts(item))
    if not named:
        return None
    name, _ = min(named.items(), key=lambda item: (-item[1], item[0]))
    return SharedCause(kind=MOUNT, name=name)


def find_dead_mounts(position: Position) -> set[str]:
    """Return the mounts that its process, or a child of it, is blocked on in the last two dumps."""
    dumps = position.evidence.dumps[-2:]
    if not dumps or position.movement.stores:
        return set()
    found = set.intersection(*(set(_blocked_in(dump, position.evidence.node)) for dump in dumps))
    return {name for _, name in found}


def _blocked_in(dump: RankDump, node: str) -> Iterator[tuple[int, str]]:
    """Yield each process that is blocked on a mount, and the name of the mount."""
    for pid, wait in [(dump.pid, dump.kernel), *((c.pid, c.kernel) for c in dump.children)]:
        if name := name_mount(wait, node):
            yield pid, name


def name_mount(wait: KernelWait, node: str) -> str:
    """Return the name of the only mount that a thread can be blocked on; empty if not known.

    "nfs1:/data" is the same storage on every node. Storage of one node has the node's name:
    "gpu-042:/dev/nvme0n1p1", or the mount point if the source is not a device.
    """
    mount = find_mount(wait, classify_wait(wait).wait_class)
    if mount is None:
        return ""
    if file_system_of(mount).scope == CLUSTER:
        return clean(mount.source, MAX_NAME)
    place = mount.source if mount.source.startswith("/dev/") else mount.point
    return clean(f"{node}:{place}", MAX_NAME)
