"""What discovery says of a process that is a rank."""

from __future__ import annotations

from dataclasses import dataclass

from agent.discovery.launchers import RankClaim
from agent.discovery.pages import PageFile
from agent.discovery.process_table import Process


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRank:
    """A process that is a rank, and whose."""

    process: Process
    job: str
    claim: RankClaim
    page: PageFile | None
    has_page: bool = False
    """Also while it is not open here."""

    @property
    def pid(self) -> int:
        """Process id on this host."""
        return self.process.pid
