"""Classifies how one rank ended, from the report of its node and its heartbeat page.

What the type and the text of an exception show is in `error_texts.py`. A message has several lines:
those that carry its meaning, joined by `LINE_END` (see `watchtower_heartbeat.own_page`).
"""

from __future__ import annotations

from enum import Enum

from watchtower.evidence.error_texts import Strength, read_error
from watchtower.evidence.frames import last_component
from watchtower.wire.report import Ending, EndingKind
from watchtower.writing.text import clean

SIGNAL_NAMES = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    10: "SIGUSR1",
    11: "SIGSEGV",
    12: "SIGUSR2",
    13: "SIGPIPE",
    15: "SIGTERM",
    24: "SIGXCPU",
    25: "SIGXFSZ",
    31: "SIGSYS",
}
"""Names of signals by number: signal(7), x86 and ARM."""


SAME_MOMENT_S = 0.5
"""Deaths on two nodes within this many seconds have no known order, because the reports of two
nodes are up to this far apart."""

UNKNOWN_END = "exited (exit status unknown)"


class DeathKind(Enum):
    """How a rank ended. The kinds differ in how likely the rank itself is the cause."""

    OOM = "oom"
    CRASH = "crash"
    OWN_EXCEPTION = "own_exception"
    EXIT_CODE = "exit_code"
    KILLED = "killed"
    EXIT_ONE = "exit_one"
    """Exit code 1 without a known exception. Python exits with it after any exception."""
    VANISHED = "vanished"
    """Its node does not know how it ended."""
    ABORTED = "aborted"
    """SIGABRT: an assertion in the rank, or a watchdog that stopped waiting for other ranks."""
    CONSEQUENTIAL = "consequential"
    TERMINATED = "terminated"
    CLEAN = "clean"


_TERMINATING = frozenset({"SIGHUP", "SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2"})
"""Signals that schedulers and launchers send to end or warn a job."""


def classify_ending(ending: Ending | None) -> DeathKind:
    """Return the kind of an ending. A known exception counts more than the exit code."""
    if ending is None:
        return DeathKind.VANISHED
    if ending.oom_killed:
        return DeathKind.OOM
    if ending.exception_type:
        return classify_exception(ending.exception_type, ending.exception_text)
    signal = signal_name(ending)
    if signal:
        return _classify_signal(signal)
    if ending.kind is not EndingKind.EXIT:
        return DeathKind.VANISHED
    if ending.code is None:  # the heartbeat page has "finished"; old kernels report no exit code
        return DeathKind.CLEAN
    return {0: DeathKind.CLEAN, 1: DeathKind.EXIT_ONE}.get(ending.code, DeathKind.EXIT_CODE)


def signal_name(ending: Ending) -> str:
    """Return the name of the signal that ended a process; an empty string if none did.

    An exit code of 128 + n, as of a shell around the process, counts as signal n.
    """
    if ending.code is None:
        return ""
    if ending.kind is EndingKind.SIGNAL:
        return SIGNAL_NAMES.get(ending.code, f"signal {ending.code}")
    return SIGNAL_NAMES.get(ending.code - 128, "") if ending.kind is EndingKind.EXIT else ""


def describe_ending(ended: Ending | None) -> str:
    """Return how a process ended: "ended by SIGTERM", "exited with code 3", "raised ValueError"."""
    if ended is None:
        return UNKNOWN_END
    if ended.oom_killed:
        return "killed by the kernel for lack of memory (OOM)"
    if ended.exception_type:
        return f"raised {clean(last_component(ended.exception_type), 80)}"
    if signal := signal_name(ended):
        return f"ended by {signal}"
    return UNKNOWN_END if ended.code is None else f"exited with code {ended.code}"


def classify_exception(exception_type: str, text: str) -> DeathKind:
    """Return the kind of an exception, by its class name without module, and by its message."""
    found = read_error(exception_type, text)
    if found.strength is Strength.ORDERED:
        return DeathKind.TERMINATED
    return DeathKind.CONSEQUENTIAL if found.is_consequence else DeathKind.OWN_EXCEPTION


def _classify_signal(name: str) -> DeathKind:
    if name in _TERMINATING:
        return DeathKind.TERMINATED
    return {"SIGKILL": DeathKind.KILLED, "SIGABRT": DeathKind.ABORTED}.get(name, DeathKind.CRASH)
