"""The sources of waits: what shows that a rank waits for other ranks, one function each.

A source takes the positions that the sources before it have made, and adds an edge with its name.
So it may correct what an earlier source has shown, and a source that only infers can add nothing
where some rank is known to wait. Another source is another file and another entry in `SOURCES`.
"""

from __future__ import annotations

from typing import Protocol

from watchtower.diagnosis.position import Place
from watchtower.diagnosis.waits.comm_threads import find_waits_in_comm_threads
from watchtower.diagnosis.waits.gave_up import find_waits_given_up
from watchtower.diagnosis.waits.log_waits import find_waits_in_logs
from watchtower.diagnosis.waits.majority import find_majority_waits, find_scattered_waits
from watchtower.diagnosis.waits.positions import Known

STACK = "stack"
DEVICE = "wait for a device"


class Source(Protocol):
    """Adds the edge of one source; returns the same positions where it shows no wait."""

    def __call__(self, positions: Known, /) -> Known:
        """Return the positions with what this source shows."""
        ...


def find_waits_in_stacks(positions: Known) -> Known:
    """Add the ranks whose stack ends in a call that waits for other ranks."""
    inside = (rank for rank, item in positions.by_rank.items() if item.place is Place.INSIDE)
    return positions.with_edge(STACK, inside)


def find_waits_for_devices(positions: Known) -> Known:
    """Add the ranks whose training thread waits for its device."""
    by_rank = positions.by_rank.items()
    waiting = (rank for rank, item in by_rank if item.waits and item.waits_for_device)
    return positions.with_edge(DEVICE, waiting)


SOURCES: tuple[Source, ...] = (
    find_waits_in_stacks,
    find_waits_in_comm_threads,
    find_waits_in_logs,
    find_waits_for_devices,
    find_scattered_waits,
    find_majority_waits,
    find_waits_given_up,
)
"""In the order in which they are asked: what is seen, what is inferred, and what is over."""


def find_waits(positions: Known) -> Known:
    """Ask every source which ranks wait."""
    for source in SOURCES:
        positions = source(positions)
    return positions
