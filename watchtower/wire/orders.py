"""What the tower answers to a report: deadlines the agent acts on by itself, and orders.

Orders ride on replies so that nodes open no port for them. The agent only ever dumps processes it
discovered as ranks itself: an order naming anything else is refused and logged.
"""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.wire.bounds import check_age, check_count, check_rank, check_text

MAX_ORDERS = 64
"""Orders in one reply; a node runs a handful of jobs at most."""

MAX_DEADLINES = 1024
"""One per rank of a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """Dump all your ranks of `job` once `rank` has gone `after_s` without a beat."""

    job: str
    rank: int
    after_s: float
    phase: str = ""
    """Holds only while the rank is in this phase: a phase entered since has its own patience."""
    owner: str = ""
    """Whose job, as in the report. Empty: every job of that name, from a tower without owners."""
    jitter_s: float = 0.0
    """Seconds over which the agents of the job spread their dumps, each by its own share."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_text("job", self.job)
        check_text("owner", self.owner)
        check_rank(self.rank)
        check_age("after_s", self.after_s)
        check_age("jitter_s", self.jitter_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Dump `ranks` of `job` (all of the node's when empty); void after `expires_s`."""

    id: str
    job: str
    expires_s: float
    ranks: tuple[int, ...] = ()
    glance: bool = False
    """A sample: one round without child processes, only where each rank is. The tower orders one
    every 30 s if no rank has heartbeats. An agent that does not know the field dumps as usual."""
    owner: str = ""
    """Whose job, as in the report. Empty: every job of that name, from a tower without owners."""
    jitter_s: float = 0.0
    """As in a deadline. The order holds for so much longer."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_text("id", self.id)
        check_text("job", self.job)
        check_text("owner", self.owner)
        check_age("expires_s", self.expires_s)
        check_age("jitter_s", self.jitter_s)
        check_count("ranks", len(self.ranks), MAX_DEADLINES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportReply:
    """Answer to a report."""

    version: int
    tower_id: str
    """Random per tower run."""
    deadlines: tuple[Deadline, ...] = ()
    orders: tuple[Order, ...] = ()
    report_interval_s: float = 0.0
    """Seconds that the agent leaves at least between two reports; 0: as it is set."""

    def __post_init__(self) -> None:
        """Check the bounds."""
        check_text("tower_id", self.tower_id)
        check_age("report_interval_s", self.report_interval_s)
        check_count("deadlines", len(self.deadlines), MAX_DEADLINES)
        check_count("orders", len(self.orders), MAX_ORDERS)
