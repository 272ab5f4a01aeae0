"""Orders the deaths of a job: who died first-hand, and who only because a peer had gone.

Victims die louder than culprits: a rank that calls `_exit(3)` leaves no word, its peers raise
connection errors, and the launcher kills the rest. Within the settling time deaths are therefore
ordered by kind, and only then by time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from watchtower.core.case import Case, Presence
from watchtower.core.diagnosis.deaths.endings import DeathKind, classify_ending
from watchtower.core.diagnosis.deaths.gave_up import find_gave_up
from watchtower.core.diagnosis.standing import Place, Standing
from watchtower.core.diagnosis.standings import Standings
from watchtower.wire.report import Ending

SAME_MOMENT_S = 0.5
"""Deaths on two nodes closer than this have no order: the nodes' reports are apart that much."""

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
