"""Finds a mount, node or address that holds up a job and may hold up other jobs, too.

It is read from the evidence of one job alone, so that it does not depend on which other jobs are
there. Jobs with the same name for it can be grouped by comparing names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from watchtower.diagnosis.blocked_rank import BlockedRank, Job
from watchtower.diagnosis.domain import OUTSIDE_SOCKET, Line
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.wire.bounds import MAX_NAME
from watchtower.wire.verdict import ADDRESS, MOUNT, NODE, Cause, SharedCause, Suspect
from watchtower.writing.text import clean

OF_THE_NODE = frozenset({Cause.NODE_LOST, Cause.GPU_FAULT, Cause.GPU_DRIVER_STUCK})
"""Causes that every job on the node of the suspect has a part in."""


def find_shared_cause(
    picture: Picture,
    lines: Sequence[Line],
    suspects: Sequence[Suspect],
    accused: Sequence[Position],
) -> SharedCause | None:
    """Return what the job may share with others; null if nothing such is known.

    `lines` are those of the cause, which decide whom to call. `accused` are the positions of the
    suspects, or of the candidates without any. A node comes before a mount, which comes before an
    address: the client of a file system waits at a socket, too. Without accused ranks, the mounts
    of all live ranks count.
    """
    if name := min((s.node for s in suspects if s.cause in OF_THE_NODE and s.node), default=""):
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
