"""The tower's answer to a report: deadlines, on which the agent acts by itself, and orders.

Orders are part of the answer, so that nodes need no open port. The agent dumps only processes that
it has discovered as ranks. It refuses and logs an order for any other process.
"""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.wire.bounds import (
    AGE,
    NAME,
    RANK,
    bounded,
    check_age,
    check_text,
    entries,
)
from watchtower.wire.report import ProcessId
from watchtower.wire.series import SeriesOrder

MAX_ORDERS = 64
"""Orders in one reply. A node runs a few jobs at most."""

MAX_DEADLINES = 1024
"""One per rank of a node."""

MAX_DUMPS_PER_MINUTE = 6
"""Dumps of one job per minute on one node, for all reasons together. A hang needs two or three, and
a deadline of 0 s must not cause more. An agent ignores further orders."""


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(job=NAME, owner=NAME, launch=NAME, rank=RANK, after_s=AGE, jitter_s=AGE)
class Deadline:
    """Dump all ranks of `job` on the node once `rank` has no heartbeat for `after_s` seconds."""

    job: str
    rank: int
    after_s: float
    phase: str = ""
    """The deadline applies only while the rank is in this phase: every phase has its own limit."""
    owner: str = ""
    """Owner of the job, as in the report."""
    launch: str = ""
    """Launch of the job on this node, as in the report."""
    jitter_s: float = 0.0
    """Seconds over which the agents of the job spread their dumps, each by its own share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Dump all ranks of `job` on the node. The order expires after `expires_s` seconds."""

    id: str
    job: str
    expires_s: float
    sample: bool = False
    """Take a stack sample: one round, without child processes. The tower orders one every 30 s if
    no rank has heartbeats."""
    owner: str = ""
    """Owner of the job, as in the report."""
    launch: str = ""
    """Launch of the job on this node, as in the report."""
    jitter_s: float = 0.0
    """As in a deadline. The order expires this much later."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_text("id", self.id)
        check_text("job", self.job)
        check_text("owner", self.owner)
        check_text("launch", self.launch)
        check_age("expires_s", self.expires_s)
        check_age("jitter_s", self.jitter_s)


@dataclass(frozen=True, slots=True, kw_only=True)
@bounded(
    report_interval_s=AGE,
    deadlines=entries(MAX_DEADLINES),
    orders=entries(MAX_ORDERS),
    series=entries(MAX_ORDERS),
)
class ReportReply:
    """Answer to a report."""

    version: int
    deadlines: tuple[Deadline, ...] = ()
    orders: tuple[Order, ...] = ()
    report_interval_s: float = 0.0
    """Least number of seconds between two reports of the agent. 0: the agent's own setting."""
    missing: tuple[ProcessId, ...] = ()
    """Live ranks of this node, as far as the tower knows, that the report does not contain. The
    next report says which of them do not exist any more."""
    series: tuple[SeriesOrder, ...] = ()
    """Orders for series of incidents."""
    wanted: tuple[str, ...] = ()
    """Digests of configurations that the tower does not know. The next report has their bodies."""
