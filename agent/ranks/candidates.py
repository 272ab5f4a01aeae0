"""A process that may be a rank, with its environment, command line, threads and page."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import islice

from watchtower_heartbeat.page import PageError, PageView

from agent.procfs import Proc, StartedWith, parse_command, parse_environ
from agent.ranks.guarded_reads import GuardedReads
from agent.ranks.launchers import (
    find_port,
    find_signs,
    is_launcher,
    is_python,
    is_python_program,
    is_wrapper,
    name_what_runs,
    naming_variables,
)
from agent.ranks.lineages import Claimant
from agent.ranks.live_environ import LiveEnviron, NoLiveEnviron
from agent.ranks.pages import MAX_DESCRIPTORS_PER_PROCESS, PageFile, Search, find_page
from agent.ranks.process_table import Process
from agent.ranks.ray_workers import JOB as RAY_JOB
from agent.ranks.ray_workers import NOT_ASSIGNED, NOTHING, Assigned, read_assigned
from agent.ranks.rendezvous import Rendezvous, read_rendezvous
from agent.ranks.sources import (
    find_claim,
    find_inherited_claim,
    find_member,
    find_mistake,
    variables_of_ranks,
)
from agent.ranks.sources.source import Membership, RankClaim, Shown
from watchtower.wire.bounds import MAX_NAME

FIRST_DESCRIPTORS = 64
DEEPER_EACH_CHECK = 4
"""Descriptors read in the first check of a process; each later check reads four times as many. Most
pages are found in the first check, and most processes have no page.
"""

MAX_ARGUMENTS = 10
"""Words of a command line that are stored. The first words show whether it is a launcher."""


NOT_READ_YET = "it was not read yet"

MAX_THREADS = 512
"""Threads of a process whose names are read, oldest first. Threads of collectives come after those
of the libraries for computing, which start as many as there are processors.
"""


@dataclass(slots=True, kw_only=True, eq=False)
class Candidate:
    """One process that may be a rank. Only the relevant variables of its environment are stored.

    An environment that was read once stays known. A program may write over it (a title) or delete
    variables, but a rank does not change. Only another program (exec) begins anew.
    """

    process: Process
    first_seen: float
    age_s: float = 0.0
    """Its age when it was first seen: of most processes more than 0 when an agent starts."""
    checks: int = 0
    due_at: float = 0.0
    """When it is checked again."""
    cost: int = 0
    """Links read in the last check."""
    matches: bool = False
    claim: RankClaim | None = None
    """The rank that all sources together show."""
    inherited_claim: RankClaim | None = None
    """The rank that its launcher gave it: wrappers around it and its children show it, too."""
    member: Membership | None = None
    """Its place in a group without ranks."""
    joined_at: float | None = None
    """When this place was found."""
    number: int | None = None
    """Its number in this group."""
    port: str = ""
    """The port of a server in its command line."""
    title: str = ""
    """The first word of its command line as it is now."""
    mistake: str = ""
    """What is wrong with the rank that it shows; empty if nothing is wrong."""
    owner: str = ""
    """The owner of the process; empty until it is read."""
    launches: bool = False
    """True if the command line is that of a launcher."""
    launched: bool = False
    """True if a launcher started it, or if its parent also started another rank of the job. The
    value stays after the launcher has ended.
    """
    words: dict[str, str] = field(default_factory=dict)
    network: str = ""
    """The network namespace of a rank; empty if it cannot be read."""
    command: list[str] = field(default_factory=list)
    runs: str = ""
    """What people call its program; for a launcher, the program that it starts."""
    job_runs: str = ""
    """What its launcher runs, else what it runs itself. It stays after the launcher has ended."""
    rendezvous: Rendezvous | None = None
    """What it waits for, if it is a launcher that waits for other nodes."""
    page: PageFile | None = None
    view: PageView | None = None
    """The page as it was last read. Only its identity (rank, world size, job) is current."""
    _seen_view: PageView | None = None
    """The view whose identity was compared last."""
    takes_part: bool = False
    """True if it has threads of a library of collectives: it is a member of a process group."""
    uses_gpu: bool = False
    """True if it has threads of a GPU driver. A forked worker inherits descriptors of the GPU, but
    no threads.
    """
    is_readable: bool = True
    """False if the agent may not read its environment."""
    sets_rank: bool = False
    """True if it has set a variable of its rank itself, after its start."""
    hidden: str = ""
    """Why its environment is not known: it wrote over the first one, and this prevents a read of
    the present one. Else empty.
    """
    program: str = ""
    """The file name of its executable."""
    live: LiveEnviron = field(default_factory=LiveEnviron)
    _variables: dict[str, str] | None = None
    """The relevant ones of the environment; None until it is read."""
    _given: dict[str, str] | None = None
    """Those that it was started with, if a launcher gave it a rank. They name its job: what it adds
    at run time must not give it another job.
    """
    _assigned: Assigned = NOTHING
    """What Ray has given to it since its start."""
    _image: tuple[int, ...] = ()
    _fingerprint: int = 0
    _threads: int = 1
    """Its number of threads now, and when their names were read."""
    _threads_read: int = 1

    def read_environment(self, proc: Proc, reads: GuardedReads, match: Mapping[str, str]) -> bool:
        """Read what it was started with; return True if something is known by it that was not."""
        pid = self.process.pid
        started = reads.run(pid, lambda: proc.started_with(pid))
        if started is None or started.stat is None:
            return False  # no answer: keep the old values until the next check
        self._threads = started.stat.threads
        raw, command, image = started.environ, started.command, started.stat.image
        if self._fingerprint and not (raw and command):
            return False  # the process is ending and its memory is released: keep the old values
        fingerprint = hash((raw, command, image))
        if fingerprint == self._fingerprint:
            return False
        is_new = not self._fingerprint or image != self._image
        self._fingerprint, self._image = fingerprint, image
        if is_new:
            self._begin(started)
        self.title = command.partition(b"\0")[0].decode("utf-8", "replace").strip()[:MAX_NAME]
        found = parse_environ(raw)
        if is_new and find_inherited_claim(Shown(variables=found)) is not None:
            self._given = {name: found[name] for name in naming_variables() if name in found}
        is_overwritten = bool(raw) and not found and not self._variables
        self.hidden = NOT_READ_YET if is_overwritten else ""
        before = self.member
        is_new |= self._add(proc, {**found, **(self._variables or {})}, match)
        self._find_claims()  # the title may have changed
        return is_new or self.member != before

    def _begin(self, started: StartedWith) -> None:
        """Forget what was known of the program before."""
        assert started.stat is not None
        self.owner = ""  # the process may have changed its user before the exec
        self.is_readable = started.stat.start_code != 1
        self.command = [w[:MAX_NAME] for w in parse_command(started.command)[:MAX_ARGUMENTS]]
        self.launches = is_launcher(self.command)
        self.program = started.program
        command = parse_command(started.command)
        self.port, self.runs, self.job_runs = find_port(command), name_what_runs(command), ""
        self.rendezvous = (
            read_rendezvous(command, parse_environ(started.environ)) if self.launches else None
        )
        self._variables, self._given, self._assigned = None, None, NOTHING
        self.member = self.joined_at = self.number = None
        self.live = LiveEnviron()
        self.takes_part = self.uses_gpu = self.sets_rank = False
        self._threads_read = 1

    def read_live(self, proc: Proc, reads: GuardedReads, match: Mapping[str, str]) -> bool:
        """Read the environment that it has now; return True if something new is known by it."""
        pid, born = self.process.pid, self.process.start_time
        try:
            found = reads.run(pid, lambda: self.live.read_process(proc, pid, born))
        except NoLiveEnviron as error:
            self.hidden = self.hidden and str(error)
            return False
        if found is None:
            return False
        self.live.keep(found)
        before, now = self._variables or {}, parse_environ(found.raw)
        if not self.hidden:  # else what it was started with is not known
            self.sets_rank |= any(
                name in now and now[name] != before.get(name) for name in variables_of_ranks()
            )
        self.hidden = ""
        return self._add(proc, {**before, **now}, match)

    def read_assigned(self, proc: Proc, reads: GuardedReads, match: Mapping[str, str]) -> bool:
        """Read what Ray has given to a worker since its start; return True if it is new."""
        known = self._variables or {}
        if RAY_JOB not in known or (self._assigned.job and self._assigned.actor):
            return False
        found = reads.run(self.process.pid, lambda: read_assigned(proc, self.process.pid))
        if found is None or found in (NOTHING, self._assigned):
            return False
        self._assigned = found
        self._find_claims()
        self._add(proc, known, match)
        return True

    def _add(self, proc: Proc, variables: Mapping[str, str], match: Mapping[str, str]) -> bool:
        """Store the relevant variables; return True if one of them is new or has changed."""
        if variables.get(RAY_JOB) == NOT_ASSIGNED and self._assigned.job:
            variables = {**variables, RAY_JOB: self._assigned.job}
        relevant = {name: variables[name] for name in _relevant(match) if name in variables}
        if relevant == self._variables:
            return False
        self._variables = relevant
        self.matches = all(relevant.get(name) == value for name, value in match.items())
        shown = self._find_claims()
        names = relevant if self._given is None else self._given
        self.words = {
            name: names[name][:MAX_NAME]
            for name in naming_variables()
            if name in names and self.matches
        }
        self.network = (
            proc.link(self.process.pid, "ns/net") if self.inherited_claim is not None else ""
        )
        self.mistake = find_mistake(shown) if self.matches and self.is_python else ""
        return True

    def _find_claims(self) -> Shown:
        """Ask all sources again; return what they got."""
        variables = self._variables if self._variables and self.matches else {}
        shown = Shown(
            variables=variables,
            command=self.command,
            view=self.view,
            title=self.title,
            actor=self._assigned.actor,
        )
        self.claim, self.inherited_claim = find_claim(shown), find_inherited_claim(shown)
        self.member = find_member(shown) or self.member
        return shown

    @property
    def is_python(self) -> bool:
        """Whether it runs Python. Its title may hide the command line."""
        return is_python(self.command) or is_python_program(self.program)

    @property
    def is_confirmed(self) -> bool:
        """Whether it trains itself, so that a process below it is a helper, not the rank."""
        return self.view is not None or self.takes_part

    def name_program(self, launcher: Candidate | None) -> str:
        """Return what people call the program of its job."""
        if not self.job_runs:
            is_launcher = launcher is not None and launcher.launches
            is_known = launcher is not None and (is_launcher or launcher.is_python)
            above = launcher.runs if launcher is not None and is_known else ""
            found = (above, self.runs) if is_launcher else (self.runs, above)
            self.job_runs = next(filter(None, (*found, self.program)), "")
        return self.job_runs

    def has_sign(self) -> bool:
        """Return whether it may be a rank without a valid rank, as far as this process shows."""
        return bool(self.takes_part or self.uses_gpu or self.mistake or self.hidden)

    def find_signs(self, proc: Proc) -> int:
        """Search the names of its threads for those of collectives and of a GPU, if their number
        has changed. Return how many names were read.
        """
        if self._threads == self._threads_read:
            return 0
        self._threads_read = self._threads
        try:
            with os.scandir(proc.file(self.process.pid, "task")) as entries:
                tids = [entry.name for entry in islice(entries, MAX_THREADS)]
        except OSError:
            return 1
        names = [proc.try_read(self.process.pid, f"task/{tid}/comm", 64) for tid in tids]
        signs = find_signs(name.decode("utf-8", "replace") for name in names)
        self.takes_part |= signs.collectives
        self.uses_gpu |= signs.gpu
        return 1 + len(tids)

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
        """Return True if the identity on the page has changed.

        A program may set its rank and job long after it made the page. The page of a watched rank
        is read for each report: what was read then is not read again.
        """
        view = self.page.last_view if self.page is not None else None
        if self.page is not None and view is self._seen_view:
            try:
                view = self.page.read()
            except PageError:
                return False
        self._seen_view = view
        changed = view is not None and _identity(view) != _identity(self.view)
        if changed:
            self.view = view
            self._find_claims()
        return changed

    def is_claimant(self) -> bool:
        """Return whether it shows a rank, or has a page on which a rank may be set."""
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
            takes_part=self.takes_part,
            sets_rank=self.sets_rank,
            starts_others=claim.starts_others,
            is_launcher=self.launches and self.inherited_claim is not None,
            is_wrapper=is_wrapper(self.command),
            is_python=self.is_python,
            start_time=self.process.start_time,
        )


def _identity(view: PageView | None) -> tuple[int, int, int, str] | None:
    return (view.rank, view.local_rank, view.world_size, view.job) if view is not None else None


@cache
def _names(keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted({*naming_variables(), *variables_of_ranks(), *keys}))


def _relevant(match: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables that are stored."""
    return _names(tuple(sorted(match)))
