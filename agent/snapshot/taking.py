"""Takes a snapshot: finds the ranks of this node, and dumps them twice between two reports."""

from __future__ import annotations

import contextlib
import os
import pwd
import threading
import time
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from agent import __version__
from agent.children import ChildRunner
from agent.clocks import Moment, age_s, read_moment
from agent.config import NodeSettings
from agent.dumpers.dumper import ROUND_GRACE_S
from agent.dumpers.native_places import RUNS_GRACE_S, PythonRuns
from agent.dumpers.outputs import Outputs
from agent.dumpers.python_stacks import PythonStacks, find_py_spy
from agent.dumps.dump import LEAST_RUNS_S, ROUND_DEADLINE_S, Dumping, DumpRequest
from agent.dumps.round import make_taker
from agent.dumps.starter import target_of
from agent.gaps import (
    HOST_PID_NAMESPACE,
    find_gap_of_container,
    find_gap_of_stacks,
    find_gaps,
    find_missing_rights,
    read_pid_namespace,
)
from agent.procfs import Proc
from agent.ranks.discovery import make_discovery
from agent.ranks.found_rank import JobKey
from agent.watching.rank import WatchedRank
from agent.watching.watchlist import Watchlist
from watchtower.service.sharing import by_turns
from watchtower.wire import PROTOCOL_VERSION
from watchtower.wire.dumps import DumpBatch
from watchtower.wire.report import AgentGaps, Report
from watchtower.wire.snapshot import SNAPSHOT_FORMAT, JobGap, Snapshot
from watchtower.writing.printable import printable

ROUND_GAP_S = 3.0
"""Seconds between the two rounds. A step of most jobs is shorter, so that a healthy job changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOptions(NodeSettings):
    """The checked options of `snapshot`."""

    output: str = ""
    """Path of the file, "-" for standard output. Empty: a name with the node, in this folder."""
    gap_s: float = ROUND_GAP_S
    read_logs: bool = False
    """Add what readers know of the output of ranks."""


MAX_USERS = 4
"""Users named in the sentence."""

NAMES_DEADLINE_S = 1.0
"""Seconds for the names of users. They may come from a service in the network that hangs, too."""

MAX_USER = 32
"""Characters of the name of a user, as useradd allows."""

PYTHON_NAMES = ("python", "pypy", "pt_main_thread", "ray::")
"""How the names of training processes begin. Torch and Ray set names of their own. The command line
is not read, because such a read may hang."""

ENDED = ("Z", "X")


def find_limits(proc: Proc, py_spy: str) -> AgentGaps:
    """Return what cannot be read on this node, with what to do."""
    missing = find_missing_rights(proc)
    # Root without capabilities, in a container, gets no more of them by sudo.
    is_root = os.getuid() == 0
    needed = missing if is_root else "sudo"
    unread = find_unread(proc, os.getuid()) if missing else None
    return replace(
        find_gaps(proc, py_spy),
        python_stacks=find_gap_of_stacks(
            proc, py_spy, "give it CAP_SYS_PTRACE" if is_root else "run the snapshot with sudo"
        ),
        process="; ".join(
            filter(
                None,
                (
                    write_other_users(unread, os.getuid(), needed) if unread else "",
                    write_closed(unread, needed) if unread else "",
                    find_gap_of_container(proc),
                ),
            )
        ),
    )


@dataclass(frozen=True, slots=True)
class Unread:
    """Python processes that cannot be read without more rights."""

    users: tuple[int, ...]
    """The other users who have some."""
    closed: tuple[int, ...]
    """Pids of the own user. The kernel gives the files of such a process to root, for example if
    its program has capabilities."""


def find_unread(proc: Proc, own: int) -> Unread:
    """Return the Python processes that user `own` cannot read."""
    users, closed = set(), []
    for pid in sorted(proc.pids()):
        stat = proc.stat(pid)
        # The files of a process that has ended belong to root.
        if stat is not None and stat.state not in ENDED and stat.comm.startswith(PYTHON_NAMES):
            try:
                user = os.stat(f"{proc.path}/{pid}").st_uid
                owner = os.stat(proc.file(pid, "environ")).st_uid
            except OSError:
                continue  # it has ended
            if user != own:
                users.add(user)
            elif owner != own:
                closed.append(pid)
    return Unread(users=tuple(sorted(users)), closed=tuple(closed))


def write_other_users(unread: Unread, own: int, needed: str) -> str:
    """Return the sentence on the other users."""
    users = find_names((own, *unread.users[:MAX_USERS]))
    names = [users.get(user, f"uid {user}") for user in unread.users]
    if len(names) > MAX_USERS:
        names[MAX_USERS:] = [f"{len(names) - MAX_USERS} more users"]
    shown = " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
    seen = f" ({shown} run{'' if len(names) > 1 else 's'} Python here)" if names else ""
    return (
        f"ranks of other users than {users.get(own, f'uid {own}')} are not found{seen}: run the "
        f"snapshot as the user of the job, or with {needed}"
    )


def write_closed(unread: Unread, needed: str) -> str:
    """Return the sentence on processes of the own user; empty without any."""
    if not unread.closed:
        return ""
    count = len(unread.closed)
    return (
        f"{count} Python process{'' if count == 1 else 'es'} of this user, such as pid "
        f"{unread.closed[0]}, cannot be read, because only root may trace "
        f"{'it' if count == 1 else 'them'}: run the snapshot with {needed}"
    )


def find_names(numbers: Sequence[int]) -> dict[int, str]:
    """Return the names of users, as far as they are found in time. A search that hangs is left."""
    names: dict[int, str] = {}

    def find() -> None:
        for number in numbers:
            with contextlib.suppress(KeyError, OSError):
                names[number] = printable(pwd.getpwuid(number).pw_name, MAX_USER)

    thread = threading.Thread(target=find, name="user names", daemon=True)
    thread.start()
    thread.join(NAMES_DEADLINE_S)
    return dict(names)


JOBS_AT_ONCE = 4
"""Jobs that are dumped at the same time. Most nodes run one."""

REASON = "snapshot"

ROUNDS = 2

NO_PLACE = (
    "its ranks were not dumped, because the dumps of {places} other jobs did not end within "
    "{waited_s:.0f} s: take a snapshot of this job alone (--match)"
)
NOT_DUMPED = (
    "its ranks were not dumped: no dump ended within {waited_s:.0f} s. Take another snapshot"
)
DUMPED_ONCE = (
    "its ranks were dumped once only, because the second dump did not end within {waited_s:.0f} s. "
    "Take another snapshot"
)


class SnapshotTaker:
    """Takes one snapshot. `take` may be called once."""

    def __init__(self, options: SnapshotOptions) -> None:
        self._options = options
        self._proc = Proc(options.root)
        self._discovery = make_discovery(self._proc, options.match)
        self._watchlist = Watchlist(self._proc, options.gap_s)
        py_spy = options.py_spy or find_py_spy()
        self._gaps = find_limits(self._proc, py_spy)
        self._children = ChildRunner()
        self._stacks = PythonStacks(self._children, py_spy)
        self._outputs = Outputs(self._proc) if options.read_logs else None
        self._agent_id = uuid.uuid4().hex
        self._batches: list[tuple[DumpBatch, Moment]] = []
        self._places = threading.Semaphore(JOBS_AT_ONCE)

    @property
    def unwatched_texts(self) -> tuple[str, ...]:
        """Sentences about processes that seem to be ranks and are not dumped."""
        return tuple(each.text for each in self._discovery.unwatched)

    @property
    def gaps(self) -> AgentGaps:
        """Evidence that cannot be read on this node."""
        return self._gaps

    def find_ranks(self) -> int:
        """Find the ranks of this node and return their number."""
        self._watchlist.update(self._discovery.find_all(), time.monotonic())
        return len(self._watchlist.living())

    def take(self) -> Snapshot:
        """Dump the ranks twice between two reports, and return everything as one message."""
        self._watchlist.vitals(time.monotonic())  # movement is measured from here
        if self._outputs is not None:
            self._outputs.note(self._watchlist.keys(), time.monotonic())
        began = time.monotonic()
        first = self._report()
        gaps = self._dump()
        self._watchlist.notice_ends(time.monotonic())
        last, now = self._report(), read_moment()
        return Snapshot(
            format=SNAPSHOT_FORMAT,
            watchtower=__version__,
            node=self._options.node,
            taken_at=now.wall_s,
            gap_s=time.monotonic() - began,
            reports=(first, last),
            dumps=tuple(
                replace(batch, held_s=age_s(taken, now)) for batch, taken in list(self._batches)
            ),
            gaps=gaps,
        )

    def _report(self) -> Report:
        return Report(
            version=PROTOCOL_VERSION,
            node=self._options.node,
            agent_id=self._agent_id,
            interval_s=max(self._options.gap_s, 1.0),
            ranks=self._watchlist.vitals(time.monotonic()),
            jobs=self._discovery.job_labels(),
            launches=self._watchlist.launches(),
            contained=read_pid_namespace(self._proc) != HOST_PID_NAMESPACE,
            limits=replace(self._gaps, owners=self._discovery.owners.trouble()),
            unwatched=self._discovery.unwatched,
        )

    def _dump(self) -> tuple[JobGap, ...]:
        """Dump every job, as many at once as there are places, and return which lack dumps.

        Owners take turns.
        """
        jobs: dict[JobKey, list[WatchedRank]] = {}
        for rank in self._watchlist.living():
            jobs.setdefault(rank.found.job, []).append(rank)
        dumping = Dumping(
            node=self._options.node,
            taker=make_taker(
                self._proc,
                self._children,
                self._stacks,
                lambda _: None,
                read_source=self._options.read_source,
                outputs=self._outputs,
            ),
            runs=PythonRuns(self._proc, self._children),
            deliver=lambda batch, taken: self._batches.append((batch, taken)),
            ended=lambda _: self._places.release(),
        )
        gap_s = self._options.gap_s
        longest_s = 2 * (ROUND_DEADLINE_S + ROUND_GRACE_S) + gap_s + LEAST_RUNS_S + RUNS_GRACE_S
        unplaced = set()
        for job, ranks in by_turns((job.owner, (job, ranks)) for job, ranks in jobs.items()):
            if self._places.acquire(timeout=longest_s):
                targets = tuple(map(target_of, ranks))
                dumping.start(DumpRequest(job=job, reason=REASON, targets=targets, gap_s=gap_s))
            else:
                unplaced.add(job)
        for _ in range(JOBS_AT_ONCE):
            self._places.acquire(timeout=longest_s)
        dumping.stop()
        return find_undumped(jobs, unplaced, [batch for batch, _ in self._batches], longest_s)


def find_undumped(
    jobs: Iterable[JobKey],
    unplaced: Collection[JobKey],
    dumps: Sequence[DumpBatch],
    waited_s: float,
) -> tuple[JobGap, ...]:
    """Return a gap for each of these jobs without two dumps. `unplaced`: those not begun."""
    rounds = Counter((batch.job, batch.owner) for batch in dumps)
    found = []
    for job in jobs:
        number = rounds[job.name, job.owner]
        if number >= ROUNDS:
            continue
        text = NO_PLACE if job in unplaced else DUMPED_ONCE if number else NOT_DUMPED
        sentence = text.format(places=JOBS_AT_ONCE, waited_s=waited_s)
        found.append(JobGap(job=job.name, owner=job.owner, text=sentence))
    return tuple(found)
