"""The result of discovery for a process that is a rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from agent.ranks.pages import PageFile
from agent.ranks.process_table import Process
from agent.ranks.sources.source import RankClaim
from watchtower.wire.orders import Deadline, Order
from watchtower.wire.report import Launch
from watchtower.wire.series import SeriesOrder


class JobKey(NamedTuple):
    """Identifies one launch of a job on a node. The tower decides which launches are one job.

    Jobs of two owners with the same name are two jobs.
    """

    name: str
    owner: str = ""
    launch: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.owner})" if self.owner else self.name

    @classmethod
    def named_by(cls, message: Deadline | Order | SeriesOrder) -> JobKey:
        """Return the launch that a message of the tower is about."""
        return cls(message.job, message.owner, message.launch)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRank:
    """A process that is a rank, with its job and page."""

    process: Process
    job: JobKey
    launch: Launch
    claim: RankClaim
    page: PageFile | None
    has_page: bool = False
    """Stays True while the page is not open in the agent."""
    network: str = ""
    """Its network namespace; empty if it is not known."""
    launched: bool = False
    """True if a launcher started it, or if its parent started another rank of this job on this
    node.
    """

    @property
    def pid(self) -> int:
        """Process id on this host."""
        return self.process.pid


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBeat:
    """The last heartbeat of one living process. Times are monotonic seconds."""

    key: tuple[int, int]
    job: JobKey
    rank: int
    phase: str
    beat_at: float
