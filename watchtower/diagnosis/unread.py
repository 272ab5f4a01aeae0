"""Decides of which of the accused the native functions are worth a stop of the rank."""

from __future__ import annotations

from collections.abc import Sequence

from watchtower.diagnosis.position import Position
from watchtower.evidence.native import find_functions


def find_unread(accused: Sequence[Position], stalled_for_s: float) -> tuple[int, ...]:
    """Return the accused that wait for their device and whose native functions were not read in
    this stall.

    Python shows only the line that waits there.
    """
    return tuple(
        item.rank
        for item in accused
        if item.waits_for_device and find_functions(item.evidence.dumps, stalled_for_s) is None
    )
