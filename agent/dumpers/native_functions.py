"""Dumper: native functions of a rank's main thread, by `py-spy dump --native`.

py-spy stops every thread of the process for this, for some tenths of a second. So it is done only
for ranks that an order names, never in a state in which a stop does not take effect, never if there
is nothing to read, and under a deadline of its own.

A killed py-spy leaves no process stopped: it attaches by PTRACE_SEIZE, and the kernel detaches the
threads of a tracer that ends and lets them go on. Releases before 0.4 attach with a SIGSTOP, which
a process would receive after the end of py-spy. They are refused.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, replace

from agent.children import MAX_SYMBOLS_MEMORY_BYTES, ChildRunner, Ended, Outcome
from agent.dumpers.canonical import BadDump, decode_threads, find_main
from agent.dumpers.kernel_state import is_frozen
from agent.dumpers.native_places import NativePlaces
from agent.dumpers.python_stacks import (
    GONE_HELP,
    MISSING_HELP,
    PY_SPY,
    ProcessId,
    ToolBackoff,
    explain,
)
from agent.procfs import Proc, find_tracer, parse_stat
from watchtower.wire.bounds import MAX_TEXT
from watchtower.wire.dumps import (
    MAX_NATIVE_FRAMES,
    DumpFailure,
    FailureKind,
    NativeFrame,
    NativeFunctions,
)
from watchtower.writing.printable import printable

FUNCTIONS_DEADLINE_S = 5.0
"""Seconds until py-spy is killed. It needs 0.1 to 0.7 s, most of it for the symbols of torch. The
process may be stopped for all of this time."""

PY_SPY_NATIVE = replace(PY_SPY, memory_bytes=MAX_SYMBOLS_MEMORY_BYTES)

VERSION_DEADLINE_S = 3.0
"""`py-spy --version` takes milliseconds."""

OLDEST_PY_SPY = (0, 4)
"""The first release that attaches without a SIGSTOP."""

MAX_THREADS = 2048
"""Threads of a process that may be stopped one after the other. A rank has some hundred."""

STATE_TRIES = 4
STATE_PAUSE_S = 0.05
"""A thread in state D may read a file for a moment, so the states are read some times."""

AGAIN_S = 30.0
"""Seconds in which a process is not stopped again. One stop takes at most 5 s, so orders cannot
hold a healthy rank for more than a sixth of the time."""

FORGET_S = 30.0
"""Seconds after which a failure is forgotten, as its reason may be gone, and functions of a process
for which nothing shows whether it has gone on."""

MAX_FUNCTION = 160
"""Characters of the name of a function. Names of C++ templates may have thousands."""

MAX_LIBRARY = 96
"""Characters of the name of a library."""

MAX_KNOWN = 256
"""Processes whose functions are remembered, the newest ones."""

MAY_STOP = frozenset("RSI")
"""States of a thread in which a stop takes effect at once."""

STATE_HELP = (
    "py-spy would have to stop it, and a thread of it is in state {state}, in which a stop may "
    "never take effect"
)
FROZEN_HELP = "py-spy would have to stop it, and its cgroup is frozen"
TRACED_HELP = "another tool traces it: {name}"
THREADS_HELP = "it has more than {limit} threads, and py-spy would stop all of them"
UNWINDING_ERROR = b"UNW_E"
UNWINDING_HELP = (
    "py-spy cannot find the callers of this thread, as it often cannot while a thread reads the "
    "clock all the time"
)
OLD_HELP = "py-spy {found} may leave the process stopped: install py-spy >= 0.4"
VERSION_HELP = "`py-spy --version` failed: {reason}"
AGAIN_HELP = (
    "py-spy stopped it {age:.0f} s ago, and it has gone on since: a rank is stopped at most once "
    "in {gap:.0f} s"
)
PYTHON_HELP = "it was not stopped, because it runs Python and its Python stack is the whole stack"
FORBIDDEN_HELP = "the agent runs with --no-native-functions"
ENDED_HELP = {
    Ended.DEADLINE: f"py-spy did not return within {FUNCTIONS_DEADLINE_S:g} s and was killed",
    Ended.OUTPUT: "py-spy printed too much and was killed",
    Ended.MEMORY: f"py-spy needed more than {MAX_SYMBOLS_MEMORY_BYTES >> 20} MB and was ended",
    Ended.SIGNAL: "py-spy was ended by a signal; one reason is that no memory was left",
}

_ADDRESS = "0x"
"""The name of a function without a symbol begins so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What shows whether the main thread of a process has gone on between two dumps."""

    stack: str = ""
    """Digest of its Python stack; empty if it was not read. In a training loop it is the same at
    every step."""
    beat: tuple[int, int] | None = None
    """Step and time of the last heartbeat; None without heartbeats."""
    counters: tuple[int, int] | None = None
    """CPU time and context switches of a thread that is blocked; None if it runs, or if they are
    not known."""

    def is_same(self, later: Moment) -> bool | None:
        """Return whether the thread is still where it was; None if nothing shows it."""
        if self.stack and later.stack and self.stack != later.stack:
            return False
        if self.beat is not None and later.beat is not None:
            return self.beat == later.beat
        if self.counters is not None and later.counters is not None:
            return self.counters == later.counters
        return None


@dataclass(frozen=True, slots=True)
class _Known:
    """What was read of a process."""

    functions: NativeFunctions | None
    """None if it has gone on since, or if they are too old."""
    read_at: float
    is_stopped: bool = True
    """It was stopped for this."""
    moment: Moment | None = None
    """Where it was in the first dump after that."""
    is_refused: bool = False
    """It was to be read again too early."""


class NativeFunctionReader:
    """Reads the native functions of one process at a time, and remembers them. Thread-safe."""

    def __init__(
        self,
        proc: Proc,
        runner: ChildRunner,
        tool: str,
        *,
        places: NativePlaces | None = None,
        is_allowed: bool = True,
    ) -> None:
        """Without `places`, a process that runs Python is stopped, too."""
        self._proc, self._runner, self._tool = proc, runner, tool
        self._places = places
        self._is_allowed = is_allowed
        self._backoff = ToolBackoff()
        self._known: OrderedDict[ProcessId, _Known] = OrderedDict()
        self._lock = threading.Lock()
        self._version: tuple[int, ...] = ()

    def read(self, pid: int, start_time: int, owner: str) -> None:
        """Read the functions of a process of this owner and remember them, or why there are none.

        A process that was stopped less than `AGAIN_S` seconds ago is not read.
        """
        process, now = (pid, start_time), time.monotonic()
        with self._lock:
            before = self._known.get(process)
            if before is not None and before.is_stopped and now - before.read_at < AGAIN_S:
                self._known[process] = replace(before, is_refused=True)
                return
        if why := self._refuse(pid, start_time, owner):
            self.remember(process, failed(why), is_stopped=False)
        else:
            self.remember(process, self._read(pid, start_time, owner))

    def remember(
        self, process: ProcessId, functions: NativeFunctions, *, is_stopped: bool = True
    ) -> None:
        """Remember what was read of a process now."""
        with self._lock:
            self._known.pop(process, None)
            self._known[process] = _Known(functions, time.monotonic(), is_stopped)
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)

    def recall(self, pid: int, start_time: int, moment: Moment) -> NativeFunctions | None:
        """Return what was read of a process, with its age, for a dump that was taken at this
        moment.

        None if nothing was read, if the thread has gone on since the first dump after that, or if
        it is too old. The reason instead, if the process was not read again because of `AGAIN_S`.
        """
        process, now = (pid, start_time), time.monotonic()
        with self._lock:
            known = self._known.get(process)
            if known is None:
                return None
            known = self._known[process] = _update(known, moment, now)
        age_s = max(0.0, now - known.read_at)
        if known.functions is not None:
            return replace(known.functions, age_s=age_s)
        if known.is_refused and age_s < AGAIN_S:
            return failed(AGAIN_HELP.format(age=age_s, gap=AGAIN_S))
        return None

    def _read(self, pid: int, start_time: int, owner: str) -> NativeFunctions:
        command = [self._tool, "dump", "--json", "--native", "--pid", str(pid)]
        try:
            outcome = self._runner.run(command, FUNCTIONS_DEADLINE_S, owner, PY_SPY_NATIVE)
        except OSError as error:
            return failed(f"py-spy cannot be started: {error}")
        ended = outcome.ended
        failure = (
            DumpFailure(kind=FailureKind.OTHER, help_text=ENDED_HELP[ended]) if ended else None
        )
        self._backoff.note((pid, start_time), failure, time.monotonic())
        if failure is not None:
            return failed(failure.help_text)
        if outcome.code != 0:
            return failed(explain_native(outcome))
        return parse_functions(outcome.output, pid)

    def _refuse(self, pid: int, start_time: int, owner: str) -> str:
        """Return why a process is not stopped now; empty if it may be."""
        if not self._is_allowed:
            return FORBIDDEN_HELP
        if not self._tool:
            return MISSING_HELP
        if why := self._refuse_version(owner):
            return why
        if refused := self._backoff.refuse((pid, start_time), time.monotonic()):
            return refused.help_text
        if self._is_gone(pid, start_time):
            return GONE_HELP
        if self._places is not None and self._places.runs_python(pid, owner):
            return PYTHON_HELP
        # Last, because the samples take some seconds.
        return GONE_HELP if self._is_gone(pid, start_time) else find_obstacle(self._proc, pid)

    def _is_gone(self, pid: int, start_time: int) -> bool:
        stat = self._proc.stat(pid)
        return stat is None or stat.start_time != start_time

    def _refuse_version(self, owner: str) -> str:
        """Return why this py-spy is not used; empty if its release is new enough."""
        if not self._version:
            try:
                command = [self._tool, "--version"]
                outcome = self._runner.run(command, VERSION_DEADLINE_S, owner, PY_SPY)
            except OSError as error:
                return VERSION_HELP.format(reason=error)
            if reason := _explain_version(outcome):
                return VERSION_HELP.format(reason=reason)
            self._version = parse_version(outcome.output)
        if self._version < OLDEST_PY_SPY:
            found = ".".join(map(str, self._version)) or "of an unknown release"
            return OLD_HELP.format(found=found)
        return ""


def _update(known: _Known, moment: Moment, now: float) -> _Known:
    """Return what is known of a process in a dump at this moment."""
    if known.functions is None:
        return known
    # The reason not to stop a process does not depend on the place of its thread.
    first = known.moment if known.is_stopped else None
    same = first.is_same(moment) if first is not None else None
    lasts = same and not known.functions.failure
    if same is False or (not lasts and now - known.read_at >= FORGET_S):
        return replace(known, functions=None)
    return known if known.moment is not None else replace(known, moment=moment)


def _explain_version(outcome: Outcome) -> str:
    """Return why `py-spy --version` did not work; empty if it did."""
    if outcome.ended is Ended.DEADLINE:
        return f"it did not return within {VERSION_DEADLINE_S:g} s and was killed"
    if outcome.ended:
        return ENDED_HELP[outcome.ended]
    if outcome.code != 0:
        return _first_line(outcome.errors) or f"exit status {outcome.code}"
    return ""


def find_obstacle(proc: Proc, pid: int) -> str:
    """Return why a process cannot be stopped for a moment and go on; empty if it can."""
    obstacle = ""
    for attempt in range(STATE_TRIES):
        if attempt:
            time.sleep(STATE_PAUSE_S)
        obstacle = _find_obstacle(proc, pid)
        if not obstacle:
            break
    return obstacle


def _find_obstacle(proc: Proc, pid: int) -> str:
    if is_frozen(proc, pid):
        return FROZEN_HELP
    if tracer := find_tracer(proc, pid):
        return TRACED_HELP.format(name=printable(proc.name(tracer), MAX_LIBRARY))
    try:
        tids = os.listdir(proc.file(pid, "task"))
    except OSError:
        return GONE_HELP
    if len(tids) > MAX_THREADS:
        return THREADS_HELP.format(limit=MAX_THREADS)
    for tid in tids:
        stat = parse_stat(proc.try_read(pid, f"task/{tid}/stat", 4096))
        # A thread that has just ended needs no stop.
        if stat is not None and stat.state not in MAY_STOP:
            return STATE_HELP.format(state=printable(stat.state, 1))
    return ""


def parse_functions(raw: bytes, pid: int) -> NativeFunctions:
    """Return the native frames of the main thread before its innermost Python frame, from the
    output of `py-spy dump --json --native`."""
    try:
        threads = decode_threads(raw)
    except BadDump as error:
        return failed(str(error))
    main = find_main(threads, pid)
    if main is None:
        return failed("py-spy found no main thread")
    frames: list[NativeFrame] = []
    for frame in main.frames:
        is_lost = frame.name.startswith(_ADDRESS) and frame.module is None
        if is_lost or len(frames) == MAX_NATIVE_FRAMES:
            break  # an address outside of all libraries: the callers are not known
        if frame.module is None:
            return NativeFunctions(calls=tuple(frames), is_whole=True)
        library = os.path.basename(frame.module)
        function = "" if frame.name.startswith(_ADDRESS) else frame.name
        frames.append(
            NativeFrame(
                file=printable(library, MAX_LIBRARY), function=printable(function, MAX_FUNCTION)
            )
        )
    return NativeFunctions(calls=tuple(frames))


def parse_version(raw: bytes) -> tuple[int, ...]:
    """Return the release in the output of `py-spy --version`, "py-spy 0.4.3"; empty without one."""
    name, _, version = raw[:64].decode("ascii", "replace").strip().partition(" ")
    parts = version.split(".")
    is_valid = name == "py-spy" and all(part.isdecimal() and len(part) < 6 for part in parts)
    return tuple(map(int, parts)) if is_valid else ()


def explain_native(outcome: Outcome) -> str:
    """Return why py-spy printed no functions, from its error message."""
    if UNWINDING_ERROR in outcome.errors:
        return UNWINDING_HELP
    failure = explain(outcome)
    if failure.kind in (FailureKind.REFUSED, FailureKind.GONE):
        return failure.help_text
    return f"py-spy: {_first_line(outcome.errors)}"


def _first_line(errors: bytes) -> str:
    line = errors.decode("utf-8", "replace").strip().partition("\n")[0]
    return printable(line, MAX_TEXT // 2)


def failed(why: str) -> NativeFunctions:
    """Return no functions, with the reason."""
    return NativeFunctions(failure=why[:MAX_TEXT])
