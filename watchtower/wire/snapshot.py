"""The file of a snapshot: what one node's ranks did at one moment, without a tower.

It contains the usual messages: two reports, and the dumps that were taken between them. A file may
contain several snapshots, one a line.
"""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.wire.bounds import (
    MAX_DUMPS_BYTES,
    MAX_RANKS_PER_NODE,
    MAX_REPORT_BYTES,
    NAME,
    TEXT,
    bounded,
    check_age,
    check_count,
    check_text,
)
from watchtower.wire.dumps import DumpBatch
from watchtower.wire.report import Report

SNAPSHOT_FORMAT = "watchtower-snapshot-1"
"""This name changes only if an older reader would misunderstand a newer file."""

MAX_BATCHES = 2 * MAX_RANKS_PER_NODE
"""Two rounds of every job of a node, if each of its ranks is a job of its own."""

MAX_SNAPSHOT_BYTES = 2 * (MAX_REPORT_BYTES + MAX_DUMPS_BYTES)
"""Bytes of one snapshot as JSON. An agent cuts a longer one to this size, and `watchtower diagnose`
refuses a longer one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotHead:
    """The fields that a reader checks first, also of a format that it does not know."""

    format: str
    node: str = ""


MAX_JOB_GAPS = 4 * MAX_RANKS_PER_NODE
"""Every job of a node may lack ranks, dumps and parts of dumps."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(job=NAME, owner=NAME, text=TEXT)
class JobGap:
    """What a snapshot lacks of a job that it found."""

    job: str
    owner: str
    text: str
    """A sentence without its full stop: what is missing, why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One node at one moment."""

    format: str
    watchtower: str
    """Release of the agent."""
    node: str
    taken_at: float
    """UNIX seconds on the node's clock. It is shown and compared with other files, and no age is
    computed from it."""
    gap_s: float
    """Seconds between the two reports."""
    reports: tuple[Report, ...]
    """At the beginning and at the end."""
    dumps: tuple[DumpBatch, ...] = ()
    """Up to two rounds of each job. `held_s` counts to the second report."""
    gaps: tuple[JobGap, ...] = ()
    """Ranks and dumps that are missing although their job was found."""

    def __post_init__(self) -> None:
        """Check the bounds, and that all messages are of this node."""
        check_text("node", self.node)
        check_text("watchtower", self.watchtower)
        check_age("taken_at", self.taken_at)
        check_age("gap_s", self.gap_s)
        check_count("dumps", len(self.dumps), MAX_BATCHES)
        check_count("gaps", len(self.gaps), MAX_JOB_GAPS)
        if len(self.reports) != 2:
            raise ValueError(f"`reports` has {len(self.reports)} entries, must have 2")
        nodes = {report.node for report in self.reports} | {batch.node for batch in self.dumps}
        if nodes != {self.node}:
            raise ValueError("`node` differs between the snapshot and its messages")
