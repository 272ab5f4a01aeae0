"""The native functions of the accused: evidence for people. No function name decides anything."""

from __future__ import annotations

from collections.abc import Sequence

from watchtower.core.diagnosis.position import Position
from watchtower.core.ranksets import format_ranks
from watchtower.core.reading.native import describe_functions, find_functions
from watchtower.wire.verdict import Evidence

MAX_SHOWN = 4
"""Ranks of one verdict whose functions are shown."""


def show_functions(accused: Sequence[Position]) -> tuple[Evidence, ...]:
    """Return the native functions of the accused, where they were read. They have no weight."""
    read = [(item, find_functions(item.evidence.dumps)) for item in accused]
    lines = [
        (item.rank, describe_functions(functions, item.native))
        for item, functions in read
        if functions is not None
    ]
    return tuple(
        Evidence(source="native", text=f"native: {line}", ranks=format_ranks([rank]), weight=0.0)
        for rank, line in lines[:MAX_SHOWN]
        if line
    )


def find_unread(accused: Sequence[Position]) -> tuple[int, ...]:
    """Return the accused that wait for their device and whose native functions were not read.

    Python shows only the line that waits there.
    """
    return tuple(
        item.rank
        for item in accused
        if item.waits_for_device and find_functions(item.evidence.dumps) is None
    )
