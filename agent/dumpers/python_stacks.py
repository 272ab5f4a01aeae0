"""Dumper: Python stacks by py-spy, without stopping the process.

py-spy is never used in blocking or native mode. Both attach to the process and stop it, and they
never return if it is in state D or T or in a frozen cgroup.

A process can make py-spy fail: it can stop py-spy, lock its own memory, or forge its program.
Therefore failures are counted by process and by owner, and an owner's processes are not evidence
about the node. Only if py-spy fails on a process of the agent too, it does not work on this node.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from agent.children import MAX_TOOL_MEMORY_BYTES, ChildRunner, Ended, Outcome, Tool, quiet_child
from agent.dumpers.dumper import DEAD, LATE_HELP, Process, RanksOfRound, Step
from agent.ranks.launchers import is_python
from watchtower.readers.canonical import BadDump, StackDump, Threads, failed, parse_dump
from watchtower.service.sharing import FairPlaces
from watchtower.wire.bounds import MAX_TEXT
from watchtower.wire.dumps import DumpFailure, FailureKind

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 5.0
"""Pause after the second failure in a row. The first failure causes no pause, so that a node that
was busy for a moment does not cost a rank the second round of its dump.
"""

LONGEST_PAUSE_S = 320.0
"""The pause doubles each time, up to this."""

MAX_KNOWN = 4096
"""Processes remembered: four times the ranks of a node. The oldest are dropped."""

ProcessId = tuple[int, int]
"""Process id and start time."""


class _Trouble(NamedTuple):
    failure: DumpFailure
    times: int
    until: float


class ToolBackoff:
    """Counts for each process how often in a row the tool had to be ended. Thread-safe."""

    def __init__(self) -> None:
        self._troubles: OrderedDict[ProcessId, _Trouble] = OrderedDict()
        self._lock = threading.Lock()

    def times(self, process: ProcessId) -> int:
        """Return how often in a row the tool had to be ended; 0 if the last dump succeeded."""
        with self._lock:
            trouble = self._troubles.get(process)
        return trouble.times if trouble is not None else 0

    def refuse(self, process: ProcessId, now: float) -> DumpFailure | None:
        """Return why the process is not dumped now; None if it may be."""
        with self._lock:
            trouble = self._troubles.get(process)
        if trouble is None or now >= trouble.until:
            return None
        text = (
            f"not dumped again for {trouble.until - now:.0f} s, because the tool had to be ended "
            f"{trouble.times} times in a row: {trouble.failure.help_text}"
        )
        return DumpFailure(kind=trouble.failure.kind, help_text=text[:MAX_TEXT])

    def note(self, process: ProcessId, failure: DumpFailure | None, now: float) -> None:
        """Record a dump that ended at `now`. `failure`: why the tool had to be ended, else None."""
        with self._lock:
            before = self._troubles.pop(process, None)
            if failure is None:
                return
            times = before.times + 1 if before is not None else 1
            doubled = FIRST_PAUSE_S * 2.0 ** min(times - 2, 30) if times > 1 else 0.0
            pause_s = min(LONGEST_PAUSE_S, doubled)
            self._troubles[process] = _Trouble(failure, times, now + pause_s)
            if len(self._troubles) > MAX_KNOWN:
                self._troubles.popitem(last=False)


FAILURES_IN_A_ROW = 4
"""Failures in a row of one owner: two rounds over two processes without a stack. Then py-spy is
checked.
"""

CHECK_EVERY_S = 60.0
"""Seconds between two checks on a process of the agent while failures continue. One check takes 6 s
if py-spy hangs.
"""

MAX_OWNERS = 1024
"""Owners whose failures are counted; the oldest are dropped."""

_NO_SIGN = (FailureKind.GONE, FailureKind.TORN)
"""The process ended, or was read but continued to run: this shows nothing about py-spy."""


def start_thread(step: Callable[[], None]) -> None:
    """Run a step in a thread of its own."""
    threading.Thread(target=step, name="check", daemon=True).start()


class StackTrouble:
    """Counts the failures in a row of each owner, and logs when they begin and end. Thread-safe."""

    def __init__(
        self,
        dump_own: Callable[[], DumpFailure | None],
        start: Callable[[Callable[[], None]], None] = start_thread,
    ) -> None:
        """`dump_own` dumps a process of the agent and returns why that failed.

        `start` runs this check in parallel to the dumps, because it may take long.
        """
        self._dump_own, self._start = dump_own, start
        self._lock = threading.Lock()
        self._in_a_row: OrderedDict[str, int] = OrderedDict()
        self._checked_at = float("-inf")
        self._on_node: DumpFailure | None = None

    def note(self, owner: str, failure: DumpFailure | None, now: float) -> None:
        """Record how the dump of a process of this owner ended at `now`; None: it has stacks."""
        if failure is None:
            self._note_success(owner)
        elif failure.kind not in _NO_SIGN:
            self._note_failure(owner, failure, now)

    def sentence(self) -> str:
        """Return why py-spy does not work on this node; empty if it works or was not checked."""
        failure = self._on_node
        if failure is None:
            return ""
        text = (
            f"no Python stacks: py-spy fails on a process of the agent too ({_kind(failure)}): "
            f"{failure.help_text}; try it by hand: `py-spy dump --pid PID`"
        )
        return text[:MAX_TEXT]

    def _note_success(self, owner: str) -> None:
        with self._lock:
            times = self._in_a_row.pop(owner, 0)
            was_on_node, self._on_node = self._on_node, None
        if was_on_node is not None:
            log.info("py-spy gives stacks again")
        elif times >= FAILURES_IN_A_ROW:
            log.info("py-spy gives stacks of a process of %s again", owner)

    def _note_failure(self, owner: str, failure: DumpFailure, now: float) -> None:
        with self._lock:
            times = self._in_a_row.pop(owner, 0) + 1
            self._in_a_row[owner] = times
            if len(self._in_a_row) > MAX_OWNERS:
                self._in_a_row.popitem(last=False)
            is_due = times >= FAILURES_IN_A_ROW and now - self._checked_at >= CHECK_EVERY_S
            if is_due:
                self._checked_at = now
        if is_due:
            self._start(self._check)
        if times == FAILURES_IN_A_ROW and not self.sentence():
            log.warning(
                "py-spy failed %d times in a row on processes of %s, last (%s): %s",
                times,
                owner,
                _kind(failure),
                failure.help_text,
            )

    def _check(self) -> None:
        failure = self._dump_own() and self._dump_own()  # twice: the node may have been busy
        with self._lock:
            before, self._on_node = self._on_node, failure
        if failure is not None and before is None:
            log.warning("limit: %s", self.sentence())
        elif failure is None and before is not None:
            log.info("py-spy gives stacks again")


def _kind(failure: DumpFailure) -> str:
    return failure.kind.value.replace("_", " ")


PY_SPY_AT_ONCE = 3
"""Two at once need two thirds of the time of one by one; more than two are not faster. One owner
has at most two. The third is for other owners, because py-spy may hang on each process of an owner.
"""


class ToolTurns:
    """Gives the places to owners in turn. The last one is for an owner that has none."""

    def __init__(self) -> None:
        self._places = FairPlaces(PY_SPY_AT_ONCE)
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def take(self, owner: str, order: tuple[int, ...], deadline: float) -> Iterator[bool]:
        """Wait for a place and hold it during the block. Yield False if the deadline came first.

        Of one owner's requests, the one with the lowest `order` is first. The first number of
        `order` is how often in a row py-spy had to be ended on the process. If it is above 0, the
        request waits for the requests of all other processes, and never gets the last place.
        """
        with self._changed:
            ticket = self._places.ask(owner, order=order, leaves_last=order[0] > 0)
            self._hand_out()
            while ticket.since is None and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
        try:
            yield ticket.since is not None
        finally:
            with self._changed:
                self._places.leave(ticket, time.monotonic())
                self._hand_out()

    def _hand_out(self) -> None:
        if self._places.hand_out(time.monotonic()):
            self._changed.notify_all()


PY_SPY_DEADLINE_S = 3.0
"""A dump takes 10 ms. One that takes this long hangs."""

PY_SPY_TRIES = 3
"""About 4 % of the dumps of a busy process are torn, because it is not stopped."""

PY_SPY = Tool(name="py-spy", max_output_bytes=4 << 20)
"""The largest real dump seen has 48 kB."""

MISSING_HELP = (
    "py-spy is not installed beside the agent or on its PATH: pip install 'gpu-watchtower[agent]'"
)
REFUSED_HELP = (
    "py-spy may not read this process: run the agent or the snapshot as root, or with "
    "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, or, if only Yama forbids it, start the training "
    "process with WATCHTOWER_PTRACE=any"
)
GONE_HELP = "the process ended before it could be dumped"
UNSUPPORTED_HELP = (
    "py-spy finds no supported Python in this process: install a newer py-spy. A program "
    "without Python has no Python stacks"
)
_ENDED_HELP = {
    Ended.DEADLINE: f"py-spy did not return within {PY_SPY_DEADLINE_S:g} s and was killed",
    Ended.OUTPUT: f"py-spy printed more than {PY_SPY.max_output_bytes >> 20} MB and was killed",
    Ended.MEMORY: f"py-spy needed more than {MAX_TOOL_MEMORY_BYTES >> 20} MB and was ended",
    Ended.SIGNAL: "py-spy was ended by a signal; one reason is that no memory was left",
}
AGENT = "agent"
"""The owner of the agent's own processes. Owners of jobs have a colon in their names."""

TORN_HELP = "the process ran while its stacks were read, so they may be incomplete"

_SIGNS = (
    (("permission denied", "operation not permitted"), FailureKind.REFUSED, REFUSED_HELP),
    (("no such process", "no such file"), FailureKind.GONE, GONE_HELP),
    (
        ("find python version", "not a python process", "unsupported", "failed to find python"),
        FailureKind.UNSUPPORTED,
        UNSUPPORTED_HELP,
    ),
)
"""Messages of py-spy ("Error: Failed to find python version from target process") and our failure
kinds for them.
"""


def find_py_spy() -> str:
    """Return the path of py-spy: beside this Python, else on PATH. Return "" if not installed."""
    beside = os.path.join(os.path.dirname(sys.executable), "py-spy")
    return beside if os.access(beside, os.X_OK) else shutil.which("py-spy") or ""


class PythonStacks:
    """Dumps Python stacks. Owners share the turns at py-spy."""

    name, at_once, needs_stacks = "py-spy", PY_SPY_AT_ONCE, False

    def __init__(
        self,
        runner: ChildRunner,
        tool: str,
        start_own: Callable[[], AbstractContextManager[int | None]] = quiet_child,
    ) -> None:
        """`start_own` starts a process of the agent, on which py-spy is checked."""
        self._runner, self._tool, self._start_own = runner, tool, start_own
        self._trouble = StackTrouble(self._dump_own)
        self._backoff = ToolBackoff()
        self._turns = ToolTurns()

    def plan(self, ranks: RanksOfRound) -> Sequence[Step]:
        """Return a step for each process, those first on which py-spy worked the last time."""
        wanted = sorted(ranks.processes(), key=self._order)
        return [partial(self._fill, each, ranks.deadline) for each in wanted if is_dumpable(each)]

    def _order(self, process: Process) -> tuple[int, bool]:
        """Return the sort key of a process: how often py-spy was ended on it, then ranks before
        children.
        """
        ended = self._backoff.times((process.pid, process.start_time))
        return ended, process.is_child

    def _fill(self, process: Process, deadline: float) -> None:
        # Refused without waiting for a turn, so that the other processes are not delayed.
        refused = self.refuse(process.pid, process.start_time)
        process.stacks = refused or self._dump_in_turn(process, deadline)

    def _dump_in_turn(self, process: Process, deadline: float) -> StackDump:
        with self._turns.take(process.owner, self._order(process), deadline) as has_turn:
            if not has_turn or time.monotonic() >= deadline:
                return failed(FailureKind.TIMEOUT, LATE_HELP)
            return self.dump(process.pid, process.start_time, process.owner)

    def trouble(self) -> str:
        """Return why py-spy does not work on this node; empty if it works."""
        return self._trouble.sentence()

    def dump(self, pid: int, start_time: int = 0, owner: str = "") -> StackDump:
        """Dump a process of this owner. Repeat while torn, until the stack is complete or equal
        twice.
        """
        if not self._tool:
            return failed(FailureKind.MISSING_TOOL, MISSING_HELP)
        if refused := self.refuse(pid, start_time):
            return refused
        dump = self._dump_until_whole(pid, owner)
        was_ended = dump.failure if dump.was_ended else None
        self._backoff.note((pid, start_time), was_ended, time.monotonic())
        self._trouble.note(owner, dump.failure, time.monotonic())
        return dump

    def _dump_own(self) -> DumpFailure | None:
        """Dump a process of the agent, and return why that failed; None if it did not.

        No user can make this process hang or forge it. The result is None also if the process was
        not ready in time: the node is busy.
        """
        try:
            with self._start_own() as pid:
                dump = self._dump_until_whole(pid, AGENT) if pid is not None else StackDump()
        except OSError as error:
            log.warning("py-spy cannot be checked: %s", error)
            return None
        return dump.failure if dump.threads is None else None

    def refuse(self, pid: int, start_time: int) -> StackDump | None:
        """Return why a process is not dumped now (py-spy had to be ended on it), else None."""
        failure = self._backoff.refuse((pid, start_time), time.monotonic())
        return StackDump(failure=failure) if failure is not None else None

    def _dump_until_whole(self, pid: int, owner: str) -> StackDump:
        torn: Threads | None = None
        last = failed(FailureKind.OTHER, "py-spy was not run")
        for _ in range(PY_SPY_TRIES):
            last = self._dump_once(pid, owner)
            threads = last.threads
            if threads is None:
                is_other = last.failure is not None and last.failure.kind is FailureKind.OTHER
                if last.was_ended or not is_other:
                    break
                continue
            # An embedded interpreter has another root frame. Torn stacks differ each time.
            twice = torn is not None and torn.main_digest == threads.main_digest != ""
            if threads.whole or twice:
                return last
            torn = threads
        if torn is None:
            return last
        failure = DumpFailure(kind=FailureKind.TORN, help_text=TORN_HELP)
        return StackDump(threads=torn, failure=failure)

    def _dump_once(self, pid: int, owner: str) -> StackDump:
        command = [self._tool, "dump", "--json", "--nonblocking", "--pid", str(pid)]
        try:
            outcome = self._runner.run(command, PY_SPY_DEADLINE_S, owner, PY_SPY)
        except FileNotFoundError:
            return failed(FailureKind.MISSING_TOOL, MISSING_HELP)
        except OSError as error:
            return failed(FailureKind.OTHER, f"py-spy cannot be started: {error}")
        if outcome.ended is not None:
            is_late = outcome.ended is Ended.DEADLINE
            kind = FailureKind.TIMEOUT if is_late else FailureKind.OTHER
            return replace(failed(kind, _ENDED_HELP[outcome.ended]), was_ended=True)
        if outcome.code != 0:
            return StackDump(failure=explain(outcome))
        try:
            return StackDump(threads=parse_dump(outcome.output, pid))
        except BadDump as error:
            return failed(FailureKind.OTHER, str(error))


def explain(outcome: Outcome) -> DumpFailure:
    """Return the failure kind and a help sentence for an error message of py-spy."""
    errors = outcome.errors.decode("utf-8", "replace").strip()
    for signs, kind, help_text in _SIGNS:
        if any(sign in errors.lower() for sign in signs):
            return DumpFailure(kind=kind, help_text=help_text)
    first_line = errors.partition("\n")[0][:MAX_TEXT] or f"py-spy ended with code {outcome.code}"
    return DumpFailure(kind=FailureKind.OTHER, help_text=first_line)


def is_dumpable(process: Process) -> bool:
    """Return whether py-spy can work: a living Python process without a failure so far."""
    return (
        is_python(process.command)
        and process.kernel.state not in DEAD
        and process.stacks.failure is None
    )
