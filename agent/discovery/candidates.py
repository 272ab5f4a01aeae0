"""A process that may be a rank, with its environment, its command line and its page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from watchtower_heartbeat.page import PageError, PageView

from agent.discovery.guarded_reads import GuardedReads
from agent.discovery.launchers import (
    RankClaim,
    claim_rank,
    find_rank_mistake,
    is_launcher,
    is_python,
    is_wrapper,
    known,
    naming_variables,
)
from agent.discovery.lineages import Claimant
from agent.discovery.pages import MAX_DESCRIPTORS_PER_PROCESS, PageFile, Search, find_page
from agent.discovery.process_table import Process
from agent.procfs import Proc, parse_command, parse_environ
from watchtower.wire.bounds import MAX_NAME, MAX_RANK

FIRST_DESCRIPTORS = 64
DEEPER_EACH_CHECK = 4
"""Descriptors read in the first check of a process; each later check reads four times as many. Most
pages are found in the first check, and most processes have no page.
"""

MAX_ARGUMENTS = 10
"""Words of a command line that are stored. The first words show whether it is a launcher."""


@dataclass(slots=True, kw_only=True, eq=False)
class Candidate:
    """One process that may be a rank. Only the relevant variables of its environment are stored."""

    process: Process
    first_seen: float
    checks: int = 0
    cost: int = 0
    """Links read in the last check."""
    matches: bool = False
    claim: RankClaim | None = None
    mistake: str = ""
    """The error of the rank in its environment; empty without one."""
    owner: str = ""
    """The owner of the process; empty until it is read."""
    launches: bool = False
    """True if the command line is that of a launcher."""
    launched: bool = False
    """True if a launcher started it, or if its parent also started another rank of the job. The
    value stays after the launcher has ended.
    """
    words: dict[str, str] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)
    page: PageFile | None = None
    view: PageView | None = None
    """The page as it was last read. Only its identity (rank, world size, job) is current."""
    _fingerprint: int = 0

    def read_environment(self, proc: Proc, reads: GuardedReads, match: Mapping[str, str]) -> bool:
        """Read the environment and command line; return True if they changed (after an exec)."""
        pid = self.process.pid
        started = reads.run(pid, lambda: proc.started_with(pid))
        if started is None:
            return False  # no answer: keep the old values until the next check
        raw, command = started.environ, started.command
        if self._fingerprint and not (raw and command):
            return False  # the process is ending and its memory is released: keep the old values
        fingerprint = hash((raw, command))
        if fingerprint == self._fingerprint:
            return False
        self._fingerprint = fingerprint
        self.owner = ""  # the process may have changed its user before the exec
        environment = parse_environ(raw)
        self.matches = all(environment.get(name) == value for name, value in match.items())
        self.claim = claim_rank(environment) if self.matches else None
        self.words = {
            name: environment[name][:MAX_NAME]
            for name in naming_variables()
            if name in environment and self.matches
        }
        words = [word[:MAX_NAME] for word in parse_command(command)[:MAX_ARGUMENTS]]
        self.launches = is_launcher(words)
        is_checked = self.matches and is_python(words)
        self.mistake = find_rank_mistake(environment) if is_checked else ""
        self.command = words if self.claim is not None else []
        return True

    def search_page(self, proc: Proc, reads: GuardedReads) -> int:
        """Search the descriptors for the process's own page; return how many links were read.

        A page found before is valid while the process has it open. A program that calls exec loses
        its page and makes another.
        """
        search = reads.run(self.process.pid, lambda: self._search(proc))
        # A process that is ending has no descriptors, and one that hangs does not answer: keep its
        # last page.
        self.page = search.page if search and search.page else self.page
        return search.links_read if search else 1

    def _search(self, proc: Proc) -> Search:
        if self.page is not None and self.page.is_open_in(proc, self.process.pid):
            return Search(page=self.page, links_read=1)
        limit = min(FIRST_DESCRIPTORS * DEEPER_EACH_CHECK**self.checks, MAX_DESCRIPTORS_PER_PROCESS)
        return find_page(proc, self.process.pid, self.process.start_time, limit)

    def close_page(self) -> None:
        """Close the page of a process that is not watched. The identity in `view` is kept."""
        self.page = None

    def read_identity(self) -> bool:
        """Read the page again and return True if its identity changed.

        A program may set its rank and job long after it made the page.
        """
        try:
            view = self.page.read() if self.page is not None else None
        except PageError:
            return False
        changed = view is not None and _identity(view) != _identity(self.view)
        self.view = view if changed else self.view
        return changed

    def merged_claim(self) -> RankClaim | None:
        """Return the rank from page and environment together. The page has priority."""
        claim, view = self.claim, self.view
        if view is None or not 0 <= view.rank <= MAX_RANK:
            return claim
        if claim is None or claim.rank != view.rank:
            claim = RankClaim(rank=view.rank)
        local_rank, world_size = known(view.local_rank), known(view.world_size) or None
        return replace(
            claim,
            local_rank=claim.local_rank if local_rank is None else local_rank,
            world_size=claim.world_size if world_size is None else world_size,
        )

    def is_claimant(self) -> bool:
        """Return whether the environment or the page contains a rank."""
        return self.claim is not None or self.view is not None

    def is_left_over(self) -> bool:
        """Return whether this is a worker of a dead rank. Such a worker does not become a rank."""
        dead_rank_above = any(
            ancestor.was_rank and not ancestor.alive for ancestor in self.process.lineage()
        )
        return dead_rank_above and self.view is None

    def as_claimant(self, claim: RankClaim) -> Claimant:
        """Return the values from which `choose_ranks` decides."""
        return Claimant(
            pid=self.process.pid,
            rank=claim.rank,
            ancestors=tuple(ancestor.pid for ancestor in self.process.lineage()),
            has_page=self.view is not None,
            is_launcher=self.launches and self.claim is not None,
            is_wrapper=is_wrapper(self.command),
            is_python=is_python(self.command),
            start_time=self.process.start_time,
        )


def _identity(view: PageView | None) -> tuple[int, int, int, str] | None:
    return (view.rank, view.local_rank, view.world_size, view.job) if view is not None else None
