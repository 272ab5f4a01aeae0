"""Orders the deaths of a job: who died first-hand, and who only because a peer had gone.

Victims die louder than culprits: a rank that calls `_exit(3)` leaves no word, its peers raise
connection errors, and the launcher kills the rest. Within the settling time deaths are therefore
ordered by kind, and only then by time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

from watchtower.core.case import Case, Presence
from watchtower.core.diagnosis.crowd import Standings
from watchtower.core.diagnosis.facts import read_facts
from watchtower.core.diagnosis.frames import WAITING_CLASSES, last_component
from watchtower.core.diagnosis.standing import Place, Standing
from watchtower.core.phrases import clean
from watchtower.wire.report import Ending, EndingKind

SAME_MOMENT_S = 0.5
"""Deaths on two nodes closer than this have no order: the nodes' reports are apart that much."""

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
"""signal(7), x86 and ARM."""


class DeathKind(Enum):
    """How a rank ended, by what that says about whose fault it is."""

    OOM = "oom"
    CRASH = "crash"
    OWN_EXCEPTION = "own_exception"
    EXIT_CODE = "exit_code"
    KILLED = "killed"
    EXIT_ONE = "exit_one"
    """Exit code 1 without a known exception: what Python leaves behind after any exception."""
    VANISHED = "vanished"
    """Its node could not tell how it ended."""
    ABORTED = "aborted"
    """SIGABRT: an assertion of its own, or a watchdog that gave up on the others."""
    CONSEQUENTIAL = "consequential"
    TERMINATED = "terminated"
    CLEAN = "clean"


STRENGTH = {
    DeathKind.OOM: 1,
    DeathKind.CRASH: 2,
    DeathKind.OWN_EXCEPTION: 2,
    DeathKind.EXIT_CODE: 3,
    DeathKind.KILLED: 4,
    DeathKind.EXIT_ONE: 4,
    DeathKind.VANISHED: 5,
    DeathKind.ABORTED: 6,
    DeathKind.CONSEQUENTIAL: 7,
    DeathKind.TERMINATED: 8,
    DeathKind.CLEAN: 9,
}
"""Lower is the likelier culprit; equal ones are ordered by time."""

WEAK_FROM = STRENGTH[DeathKind.ABORTED]
"""From here on a death is usually the consequence of another, earlier or later."""

_TERMINATING = frozenset({"SIGHUP", "SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2"})
"""Sent by schedulers and launchers that end or warn a job."""


_COMPATIBLE_WITH_CANCELLING = frozenset(
    {DeathKind.TERMINATED, DeathKind.CONSEQUENTIAL, DeathKind.KILLED, DeathKind.CLEAN}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """One rank's end."""

    standing: Standing
    kind: DeathKind
    age_s: float

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.standing.rank

    @property
    def node(self) -> str:
        """Node it ran on."""
        return self.standing.evidence.node

    @property
    def ending(self) -> Ending | None:
        """Words of its node."""
        return self.standing.evidence.ended


def _read_matcher(entry: dict[str, Any]) -> Callable[[str, str], bool]:
    names = re.compile(entry["type"])
    text = re.compile(entry.get("text", ""), re.IGNORECASE)
    return lambda name, message: bool(names.fullmatch(name) and text.search(message))


_TABLE = read_facts("consequential_errors")
_CONSEQUENTIAL = tuple(_read_matcher(entry) for entry in _TABLE["error"])
_INTERRUPTS = tuple(_read_matcher(entry) for entry in _TABLE["interrupt"])


def say_words(exception_type: str, text: str) -> str:
    """Say "ValueError: bad shard", empty without an exception."""
    name, text = clean(last_component(exception_type), 80), clean(text)
    return f"{name}: {text}" if text else name


def find_deaths(standings: Standings) -> tuple[Death, ...]:
    """List the ranks that are gone, the earliest first."""
    deaths = [
        Death(
            standing=item,
            kind=classify_ending(item.evidence.ended),
            age_s=item.evidence.ended.age_s if item.evidence.ended else 0.0,
        )
        for item in standings.at(Place.GONE)
    ]
    return tuple(sorted(deaths, key=lambda death: (-death.age_s, death.rank)))


GIVING_UP = frozenset(
    {
        DeathKind.OWN_EXCEPTION,
        DeathKind.CONSEQUENTIAL,
        DeathKind.EXIT_ONE,
        DeathKind.ABORTED,
        DeathKind.TERMINATED,
    }
)
"""Ends of ranks that ran out of patience, or whose launcher did, whatever their last words are."""


def find_gave_up(standings: Standings) -> tuple[Standing, ...]:
    """List those that waited in this stall and do no more, while a rank that lives was elsewhere.

    A timeout ends those who wait, long before the one they wait for. Some of them stay for a while
    without a stack, in the destructors of native code, and only their pages tell what they raised.
    """
    return standings.once(_find_gave_up)


def _find_gave_up(standings: Standings) -> tuple[Standing, ...]:
    if not standings.at(Place.BEHIND, Place.HELD):
        return ()
    ended = [
        item
        for item in standings.at(Place.GONE)
        if item.frame_class in WAITING_CLASSES and classify_ending(item.evidence.ended) in GIVING_UP
    ]
    return (*ended, *filter(_raised_of_waiting, standings.at(Place.UNKNOWN)))


def _raised_of_waiting(standing: Standing) -> bool:
    """Tell whether the page of a rank without a stack tells of a broken or timed out wait."""
    beat = standing.evidence.beat
    if standing.reading is not None or beat is None or not beat.exception_type:
        return False
    name = last_component(beat.exception_type)
    return _classify_exception(name, beat.exception_text) is DeathKind.CONSEQUENTIAL


def classify_ending(ending: Ending | None) -> DeathKind:
    """Name the kind of an ending; the exception counts before the code it left."""
    if ending is None:
        return DeathKind.VANISHED
    if ending.oom_killed:
        return DeathKind.OOM
    if ending.exception_type:
        return _classify_exception(last_component(ending.exception_type), ending.exception_text)
    signal = signal_name(ending)
    if signal:
        return _classify_signal(signal)
    if ending.kind is not EndingKind.EXIT:
        return DeathKind.VANISHED
    if ending.code is None:  # its page says that it finished; old kernels tell no code
        return DeathKind.CLEAN
    return {0: DeathKind.CLEAN, 1: DeathKind.EXIT_ONE}.get(ending.code, DeathKind.EXIT_CODE)


def signal_name(ending: Ending) -> str:
    """Name the signal that ended a process, also as the exit code 128 + n of a shell around it."""
    if ending.code is None:
        return ""
    if ending.kind is EndingKind.SIGNAL:
        return SIGNAL_NAMES.get(ending.code, f"signal {ending.code}")
    return SIGNAL_NAMES.get(ending.code - 128, "") if ending.kind is EndingKind.EXIT else ""


@lru_cache(maxsize=65536)
def _classify_exception(name: str, text: str) -> DeathKind:
    if any(matches(name, text) for matches in _INTERRUPTS):
        return DeathKind.TERMINATED
    if any(matches(name, text) for matches in _CONSEQUENTIAL):
        return DeathKind.CONSEQUENTIAL
    return DeathKind.OWN_EXCEPTION


def _classify_signal(name: str) -> DeathKind:
    if name in _TERMINATING:
        return DeathKind.TERMINATED
    return {"SIGKILL": DeathKind.KILLED, "SIGABRT": DeathKind.ABORTED}.get(name, DeathKind.CRASH)


def find_culprits(case: Case, standings: Standings) -> tuple[Death, ...]:
    """Name the deaths that explain the others: the strongest kind, then the earliest.

    Ranks that raised the very same exception share a fault and are named together.
    """
    everyone = _without_survived(find_deaths(standings), case, standings)
    deaths = [
        death
        for death in everyone
        if death.kind is not DeathKind.CLEAN and not is_put_to_death(death, everyone)
    ]
    if not deaths or is_cancelled(standings, case.settle_s):
        return ()
    gave_up = {item.rank for item in find_gave_up(standings)}
    if all(death.rank in gave_up for death in deaths):
        return ()  # whom they waited for is still there
    first = [death for death in deaths if deaths[0].age_s - death.age_s <= case.settle_s]
    if min(STRENGTH[death.kind] for death in first) >= WEAK_FROM:
        first = deaths
    strongest = min(STRENGTH[death.kind] for death in first)
    alike = [death for death in first if STRENGTH[death.kind] == strongest]
    if alike[0].kind is DeathKind.CONSEQUENTIAL and _is_somebody_out_of_sight(standings):
        return ()  # the peer they lost need not be among those whose end is known
    if alike[0].kind is DeathKind.TERMINATED:
        return tuple(alike)
    return tuple(death for death in alike if _is_first_hand(death, alike))


def _is_somebody_out_of_sight(standings: Standings) -> bool:
    return any(
        item.evidence.presence is Presence.SILENT and not item.evidence.dumps
        for item in standings.by_rank.values()
    )


def _without_survived(
    deaths: Sequence[Death], case: Case, standings: Standings
) -> tuple[Death, ...]:
    """Leave out deaths that the others stepped over for a while: they explain no later trouble."""
    beats = (item.evidence.beat for item in standings.by_rank.values())
    last_step_s = min((beat.age_s for beat in beats if beat and beat.step >= 0), default=None)
    if last_step_s is None:
        return tuple(deaths)
    patience_s = case.settle_s + 2 * case.typical_step_s
    return tuple(death for death in deaths if death.age_s - last_step_s <= patience_s)


def is_put_to_death(death: Death, deaths: Sequence[Death]) -> bool:
    """Tell whether a rank was killed after a peer had died of a lost connection: by the launcher.

    A rank killed first-hand goes before its victims, whose connections break only then.
    """
    return death.kind is DeathKind.KILLED and any(
        other.kind is DeathKind.CONSEQUENTIAL
        and other.age_s > death.age_s + (0 if other.node == death.node else SAME_MOMENT_S)
        for other in deaths
    )


def _is_first_hand(death: Death, alike: Sequence[Death]) -> bool:
    first = alike[0]
    return (
        death is first
        or _same_exception(death, first)
        or (death.node != first.node and first.age_s - death.age_s <= SAME_MOMENT_S)
    )


def _same_exception(one: Death, other: Death) -> bool:
    if one.ending is None or other.ending is None or not one.ending.exception_type:
        return False
    return (one.ending.exception_type, one.ending.exception_text) == (
        other.ending.exception_type,
        other.ending.exception_text,
    )


def is_cancelled(standings: Standings, settle_s: float) -> bool:
    """Tell whether somebody ended the whole job: one signal to most ranks, at once.

    Ranks that died of the broken connection, left with 0 or had to be killed do not count against
    it; any death that could have a reason of its own does.
    """
    deaths = find_deaths(standings)
    if not deaths or len(deaths) < len(standings.by_rank):
        return False
    if {death.kind for death in deaths} - _COMPATIBLE_WITH_CANCELLING:
        return False
    return _were_asked_to_end(deaths, settle_s) or _were_killed_together(deaths)


def _were_asked_to_end(deaths: Sequence[Death], settle_s: float) -> bool:
    asked = [death for death in deaths if death.kind is DeathKind.TERMINATED]
    begins = deaths[0].kind in {DeathKind.TERMINATED, DeathKind.CLEAN}
    return begins and 2 * len(asked) >= len(deaths) and _span_s(asked) <= settle_s


def _were_killed_together(deaths: Sequence[Death]) -> bool:
    """A launcher that follows one rank's death kills the others later, after asking them to end."""
    killed = [death for death in deaths if death.kind is DeathKind.KILLED]
    begins = deaths[0].kind is DeathKind.KILLED
    return begins and 2 * len(killed) > len(deaths) > 1 and _span_s(killed) <= SAME_MOMENT_S


def _span_s(deaths: Sequence[Death]) -> float:
    ages = [death.age_s for death in deaths]
    return max(ages) - min(ages) if ages else float("inf")
