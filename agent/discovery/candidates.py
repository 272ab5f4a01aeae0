"""A process that may be a rank: what its environment, command line and page say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from watchtower_heartbeat.page import PageError, PageView

from agent.discovery.launchers import (
    RankClaim,
    claim_rank,
    is_launcher,
    is_python,
    is_wrapper,
    known,
    naming_variables,
)
from agent.discovery.lineages import Claimant
from agent.discovery.pages import MAX_DESCRIPTORS_PER_PROCESS, PageFile, find_page
from agent.discovery.proc_args_reader import ProcArgsReader
from agent.discovery.process_table import Process
from agent.procfs import Proc, parse_command, parse_environ
from watchtower.wire.bounds import MAX_NAME, MAX_RANK

FIRST_DESCRIPTORS = 64
DEEPER_EACH_CHECK = 4
"""The first check of a process is short, because most pages are found in it and most processes have
none; each later check goes four times as far."""

MAX_ARGUMENTS = 10
"""Words of a command line that are kept: whether it is a launcher stands in the first."""


@dataclass(slots=True, kw_only=True, eq=False)
class Candidate:
    """One process under consideration. Of its environment only the words that matter are kept."""

    process: Process
    first_seen: float
    checks: int = 0
    cost: int = 0
    """Links read in the last check."""
    matches: bool = False
    claim: RankClaim | None = None
    owner: str = ""
    """Whose it is, once that was read."""
    launches: bool = False
    """Its command line is that of a launcher."""
    launched: bool = False
    """A launcher started it, or what started another rank of its job; remembered when that ends."""
    words: dict[str, str] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)
    page: PageFile | None = None
    view: PageView | None = None
    """The page's identity as it was read last; its other fields are old."""
    _fingerprint: int = 0

    def read_environment(self, args_reader: ProcArgsReader, match: Mapping[str, str]) -> bool:
        """Read what the process was started with; True when that changed, by an exec."""
        started = args_reader.read(self.process.pid)
        if started is None:
            return False  # it does not answer: it is what it was, and asked again at the next check
        raw, command = started.environ, started.command
        if self._fingerprint and not (raw and command):
            return False  # it is ending and has let go of its memory: it was what it was
        fingerprint = hash((raw, command))
        if fingerprint == self._fingerprint:
            return False
        self._fingerprint = fingerprint
        self.owner = ""  # it may have changed its user before the exec
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
        self.command = words if self.claim is not None else []
        return True

    def search_page(self, proc: Proc) -> int:
        """Search the descriptors for the process's own page; return how many links were read.

        A page found before is kept while it is open: a program that executes itself anew loses it
        and makes another.
        """
        if self.page is not None and self.page.is_open_in(proc, self.process.pid):
            return 1
        limit = min(FIRST_DESCRIPTORS * DEEPER_EACH_CHECK**self.checks, MAX_DESCRIPTORS_PER_PROCESS)
        search = find_page(proc, self.process.pid, self.process.start_time, limit)
        # A process that is ending has no descriptors any more: its last page stays.
        self.page = search.page or self.page
        return search.links_read

    def close_page(self) -> None:
        """Let go of the page of one that is not watched; what it said of itself stays known."""
        self.page = None

    def read_identity(self) -> bool:
        """Read the page again: a program may name its rank and job long after it made the page."""
        try:
            view = self.page.read() if self.page is not None else None
        except PageError:
            return False
        changed = view is not None and _identity(view) != _identity(self.view)
        self.view = view if changed else self.view
        return changed

    def merged_claim(self) -> RankClaim | None:
        """Return what page and environment say together; the page wins."""
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
        """Say whether environment or page name a rank."""
        return self.claim is not None or self.view is not None

    def is_left_over(self) -> bool:
        """Say whether this is a worker whose rank is dead: it does not become one itself."""
        dead_rank_above = any(
            ancestor.was_rank and not ancestor.alive for ancestor in self.process.lineage()
        )
        return dead_rank_above and self.view is None

    def as_claimant(self, claim: RankClaim) -> Claimant:
        """Return what deciding between candidates needs."""
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
