"""The native functions of the accused: evidence for people. No function name decides anything."""

from __future__ import annotations

from collections.abc import Sequence

from watchtower.diagnosis.position import Position
from watchtower.evidence.native import describe_functions, find_functions
from watchtower.wire.verdict import Evidence
from watchtower.writing.ranksets import format_ranks

MAX_SHOWN = 4
"""Ranks of one verdict whose functions are shown."""


def show_functions(accused: Sequence[Position], stalled_for_s: float) -> tuple[Evidence, ...]:
    """Return the native functions of the accused, where they were read in this stall. They have no
    weight."""
    read = [(item, find_functions(item.evidence.dumps, stalled_for_s)) for item in accused]
    lines = [
        (item.rank, describe_functions(functions, item.native))
        for item, functions in read
        if functions is not None
    ]
    return tuple(
        Evidence(
            source="native", text=f"rank {rank}: {line}", ranks=format_ranks([rank]), weight=0.0
        )
        for rank, line in lines[:MAX_SHOWN]
        if line
    )
