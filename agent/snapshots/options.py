"""The options of a snapshot."""

from __future__ import annotations

from dataclasses import dataclass

ROUND_GAP_S = 3.0
"""Seconds between the two rounds. A step of most jobs is shorter, so that a healthy job changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOptions:
    """The checked options of the command line."""

    node: str
    output: str = ""
    """Path of the file, "-" for standard output. Empty: a name with the node, in this folder."""
    match: tuple[tuple[str, str], ...] = ()
    root: str = "/"
    py_spy: str = ""
    """Empty: the py-spy beside this Python, else on PATH."""
    read_source: bool = True
    gap_s: float = ROUND_GAP_S
