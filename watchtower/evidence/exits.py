"""Classifies how one rank ended, from the report of its node and its heartbeat page.

What the type and the text of an exception show is in a table (`facts/error_texts.toml`). A message
has several lines: those that carry its meaning, joined by `LINE_END` (see
`watchtower_heartbeat.own_page`). They come from a process, so all here is bounded and linear.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

from watchtower.evidence.facts import TextPattern, part, read_facts, whole
from watchtower.evidence.frames import last_component
from watchtower.wire.report import LINE_END, Ending, EndingKind
from watchtower.wire.verdict import Domain
from watchtower.writing.text import clean

MESSAGE_END = 256
"""Characters of each end of a message that are matched: together the room in a heartbeat file."""

MAX_WORDS = 256
"""Words of a message that are compared with those of another rank."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an exception shows."""

    is_consequence: bool = False
    """It is raised because another rank is lost or late."""
    has_order: bool = False
    """A rank may also raise it because another one has ended."""
    domain: Domain | None = None
    """Whom to call, if the text shows it."""
    is_order: bool = False
    """It is raised for a signal or an order from outside."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the table."""

    type: TextPattern
    text: TextPattern
    meaning: Meaning

    def matches(self, name: str, text: str) -> bool:
        """Return whether the row is about this exception."""
        return self.type.matches(name) and self.text.matches(text)


def _read_entry(entry: dict[str, Any], *, is_order: bool) -> Entry:
    domain = entry.get("domain")
    return Entry(
        type=whole(entry.get("type", ".*")),
        text=part(entry.get("text", ""), re.IGNORECASE, MESSAGE_END),
        meaning=Meaning(
            is_consequence=entry.get("consequence", False),
            has_order=entry.get("order", False),
            domain=Domain(domain) if domain else None,
            is_order=is_order,
        ),
    )


_TABLE = read_facts("error_texts")
_ENTRIES = tuple(
    _read_entry(entry, is_order=name == "interrupt")
    for name in ("interrupt", "error")
    for entry in _TABLE[name]
)
OWN = Meaning()
"""An exception that no row is about is the rank's own."""


@lru_cache(maxsize=65536)
def read_error(exception_type: str, text: str) -> Meaning:
    """Return what an exception shows, by its class name without module, and by its message."""
    name = last_component(exception_type)
    found = (entry.meaning for entry in _ENTRIES if entry.matches(name, text))
    return next(found, OWN)


@lru_cache(maxsize=65536)
def shape_of(exception_type: str, text: str) -> str:
    """Return what exceptions of one fault have in common on several ranks.

    Words with digits and paths are left out: addresses, pids, numbers of records, names of files.
    """
    words = text[: 2 * MESSAGE_END].split()[:MAX_WORDS]
    kept = (word for word in words if not any(char.isdigit() or char == "/" for char in word))
    return " ".join((exception_type, *kept))


def split_lines(text: str) -> list[str]:
    """Return the lines of a message that are not blank."""
    return [line for line in map(str.strip, text.split(LINE_END)) if line]


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
    meaning = read_error(exception_type, text)
    if meaning.is_order:
        return DeathKind.TERMINATED
    return DeathKind.CONSEQUENTIAL if meaning.is_consequence else DeathKind.OWN_EXCEPTION


def _classify_signal(name: str) -> DeathKind:
    if name in _TERMINATING:
        return DeathKind.TERMINATED
    return {"SIGKILL": DeathKind.KILLED, "SIGABRT": DeathKind.ABORTED}.get(name, DeathKind.CRASH)
