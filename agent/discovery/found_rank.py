"""What discovery says of a process that is a rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from agent.discovery.launchers import RankClaim
from agent.discovery.pages import PageFile
from agent.discovery.process_table import Process


class JobKey(NamedTuple):
    """What tells one job on a node from another: two owners' jobs of one name are two jobs."""

    name: str
    owner: str = ""
    """Empty only in what comes from a tower that knows no owners."""

    def __str__(self) -> str:
        return f"{self.name} ({self.owner})" if self.owner else self.name

    def is_meant_by(self, name: str, owner: str) -> bool:
        """Return whether a tower's message about this name and owner is about this job."""
        return self.name == name and owner in ("", self.owner)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRank:
    """A process that is a rank, and whose."""

    process: Process
    job: JobKey
    claim: RankClaim
    page: PageFile | None
    has_page: bool = False
    """Also while it is not open here."""
    launched: bool = False
    """A launcher started it, or the process that started another rank of this job here."""

    @property
    def pid(self) -> int:
        """Process id on this host."""
        return self.process.pid
