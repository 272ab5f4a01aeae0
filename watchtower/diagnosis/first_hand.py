"""Orders the deaths of a job: which are first-hand, and which only followed another one.

Victims report more than culprits: a rank that calls `_exit(3)` reports nothing, its peers raise
connection errors, and the launcher kills the rest. The other deaths are ordered by time on
each node. Between nodes, and where the times are too close, deaths are ordered by kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from watchtower.diagnosis.deaths import (
    JITTER_S,
    NO_CAUSE,
    Death,
    Earliest,
    as_launchers_see,
    find_put_to_death,
    find_sent_together,
    find_survived_s,
    is_any_rank_out_of_sight,
    is_before,
)
from watchtower.diagnosis.position import Position
from watchtower.diagnosis.waits.positions import Positions
from watchtower.evidence.exits import DeathKind

STRENGTH = {
    DeathKind.OOM: 1,
    DeathKind.CRASH: 2,
    DeathKind.OWN_EXCEPTION: 2,
    DeathKind.EXIT_CODE: 3,
    DeathKind.KILLED: 5,
    DeathKind.EXIT_ONE: 5,
    DeathKind.VANISHED: 6,
    DeathKind.ABORTED: 7,
    DeathKind.CONSEQUENTIAL: 9,
    DeathKind.TERMINATED: 10,
    DeathKind.CLEAN: 11,
}
"""Lower is the likelier culprit; equal ones are ordered by time."""

FIRST_TERMINATED = 4
"""Strength of a termination of few ranks that came before whatever it could follow from."""

MANY_KILLS = 8
"""Strength of kills of several ranks at one moment: a launcher's, if another death is beside."""

WEAK = frozenset(
    STRENGTH[kind] for kind in (DeathKind.ABORTED, DeathKind.CONSEQUENTIAL, DeathKind.TERMINATED)
)
"""Deaths that are usually the consequence of another, earlier or later."""

SHOW_NO_FAILURE = frozenset({DeathKind.CLEAN, DeathKind.VANISHED})
"""If all ranks of a job ended in these ways, the job may have finished."""


class Basis(Enum):
    """What separates the deaths that are blamed from the others."""

    ALONE = "alone"
    """No other death explains as much."""
    TIME = "time"
    """Others ended in the same way, but later."""
    TEXT = "text"
    """Others ended at the same moment, but with another text."""
    NAMED = "named"
    """The texts of most others name them."""
    NOTHING = "nothing"
    """Most ranks ended in one way at one moment: no rank is blamed."""


@dataclass(frozen=True, slots=True)
class FirstHand:
    """The deaths that explain the others."""

    deaths: tuple[Death, ...] = ()
    """The earliest first."""
    basis: Basis = Basis.ALONE
    awaited: tuple[Death, ...] = ()
    """Later deaths of ranks that had not given up waiting, if those to blame are not known because
    all of `deaths` may have given up."""

    @property
    def blamed(self) -> tuple[Death, ...]:
        """Deaths whose ranks are blamed."""
        return () if self.basis is Basis.NOTHING else self.deaths


def find_first_hand(
    positions: Positions,
    deaths: Sequence[Death],
    ended_from_outside: Sequence[Death],
    gave_up: Sequence[Position],
) -> FirstHand:
    """Return the deaths that explain the others: the first of a node, then the strongest kind.

    Ranks that raised the very same exception share a fault and are named together. If no rank is
    left, what ended the job is returned in any case, also if that is a consequence by its text.
    """
    settle_s = positions.case.settle_s
    survived_s = find_survived_s(positions)
    everyone = tuple(death for death in deaths if death.age_s <= survived_s)
    is_over = _is_over(positions)
    if is_over and all(death.kind in SHOW_NO_FAILURE for death in everyone):
        return FirstHand()
    outside = {death.rank for death in ended_from_outside}
    explained = outside | find_put_to_death(everyone) | _find_preceded(everyone)
    harmless = {DeathKind.CLEAN}
    if outside:
        harmless.add(DeathKind.CONSEQUENTIAL)  # whatever broke these connections was on purpose
    deaths = [
        death for death in everyone if death.kind not in harmless and death.rank not in explained
    ]
    left = {item.rank for item in gave_up}
    if all(death.rank in left for death in deaths):
        return FirstHand()  # whom they waited for is still there
    strength = _weigh(deaths, everyone, len(positions.by_rank))
    first = [death for death in deaths if deaths[0].age_s - death.age_s <= settle_s]
    if min(strength[death.rank] for death in first) in WEAK:
        first = deaths
    strongest = min(strength[death.rank] for death in first)
    alike = [death for death in first if strength[death.rank] == strongest]
    if alike[0].kind is DeathKind.CONSEQUENTIAL and (
        _left_before(alike[0], everyone) or is_any_rank_out_of_sight(positions)
    ):
        return FirstHand()  # the peer they lost left with code 0, or it is not known how it ended
    if alike[0].kind is DeathKind.TERMINATED:
        return FirstHand(tuple(alike))
    leading = tuple(
        death for death in alike if not is_before(alike[0], death) or death.shares_fault(alike[0])
    )
    if not is_over:
        return FirstHand(leading)
    return _separate(positions, leading, alike, everyone)


def _separate(
    positions: Positions,
    leading: tuple[Death, ...],
    alike: Sequence[Death],
    everyone: Sequence[Death],
) -> FirstHand:
    """Decide which deaths to blame for the end of a job: the first ones, else the odd ones.

    A rank that gave up waiting is not the cause, whenever it gave up. Nor is one that lost a peer
    which was never seen.
    """
    first = leading[0]
    if first.kind is DeathKind.CONSEQUENTIAL and not first.error.may_follow:
        # Those that lost a connection after that have lost a rank which had given up.
        return _blame_none([death for death in alike if not death.error.may_follow], everyone)
    if first.kind is DeathKind.CONSEQUENTIAL and positions.missing:
        return _blame_none(alike, everyone)
    if named := _find_named(alike):
        return FirstHand(named, Basis.NAMED)
    if _are_few(leading, everyone, len(positions.by_rank)):
        return FirstHand(leading, Basis.ALONE if len(leading) == len(alike) else Basis.TIME)
    shapes = Counter(death.shape for death in leading)
    usual, number = shapes.most_common(1)[0]
    odd = tuple(death for death in leading if death.shape != usual)
    if odd and len(odd) < number:
        return FirstHand(odd, Basis.TEXT)
    return _blame_none(leading, everyone)


def _find_named(deaths: Sequence[Death]) -> tuple[Death, ...]:
    """Return the deaths of the rank that the texts of most of these name; none without such a rank.

    Where two ranks name each other, either of them may be the one that differs.
    """
    votes = Counter(rank for death in deaths for rank in death.named)
    rank, number = next(iter(votes.most_common(1)), (-1, 0))
    if 2 * number <= len(deaths):
        return ()
    return tuple(death for death in deaths if death.rank == rank)


def _are_few(leading: Sequence[Death], everyone: Sequence[Death], ranks: int) -> bool:
    """Return whether these differ from most ranks: from those of which it is known how they ended.

    The others may have ended in the same way, if they did so at that moment.
    """
    first = leading[0]
    accused = {death.rank for death in leading}
    unknown = sum(
        death.kind is DeathKind.VANISHED
        and death.rank not in accused
        and not is_before(first, death)
        for death in everyone
    )
    known = ranks - unknown
    if unknown and len(leading) == known:
        return False
    is_weak = first.kind in {DeathKind.CONSEQUENTIAL, DeathKind.VANISHED}
    return len(leading) == 1 or 2 * len(leading) < known + (not is_weak)


def _blame_none(deaths: Sequence[Death], everyone: Sequence[Death]) -> FirstHand:
    awaited: tuple[Death, ...] = ()
    if all(_may_have_given_up(death) for death in deaths):
        awaited = tuple(
            death
            for death in everyone
            if death.kind is not DeathKind.VANISHED
            and not _may_have_given_up(death)
            and death.age_s <= deaths[0].age_s
        )
    return FirstHand(tuple(deaths), Basis.NOTHING, awaited)


def _may_have_given_up(death: Death) -> bool:
    """Return whether a rank may have ended because it, or its watchdog, stopped waiting."""
    is_late = death.kind is DeathKind.CONSEQUENTIAL and not death.error.may_follow
    return is_late or death.kind is DeathKind.ABORTED


def _is_over(positions: Positions) -> bool:
    """Return whether no rank is left that is known, or may be alive."""
    return not positions.live and not is_any_rank_out_of_sight(positions)


def _left_before(death: Death, deaths: Sequence[Death]) -> bool:
    return any(other.kind is DeathKind.CLEAN and not is_before(death, other) for other in deaths)


def _find_preceded(deaths: Sequence[Death]) -> frozenset[int]:
    """List the ranks before which another one of their node had died of more than a lost peer.

    That does not explain a lack of memory. Lost connections are consequences at any time: a rank
    with much to free ends after those that have noticed.
    """
    causes = [death for death in deaths if death.kind not in NO_CAUSE]
    first: dict[str, Death] = {}
    for death in causes:
        first.setdefault(death.node, death)
    # Ranks that raised what the first of their node raised share its fault.
    shared = {death.rank for death in causes if death.shares_fault(first[death.node])}
    any_cause = Earliest(causes)
    other_cause = Earliest(death for death in causes if death.rank not in shared)
    preceded = set()
    for death in causes:
        earlier = other_cause if death.rank in shared else any_cause
        if death.kind is not DeathKind.OOM and earlier.is_before_on_node(death):
            preceded.add(death.rank)
    return frozenset(preceded)


def _weigh(deaths: Sequence[Death], everyone: Sequence[Death], ranks: int) -> dict[int, int]:
    """Map ranks to the strength of their deaths; the company of a signal counts, too."""
    together = find_sent_together(everyone)
    unsent = [
        death for death in everyone if death.kind not in {DeathKind.TERMINATED, DeathKind.CLEAN}
    ]
    any_unsent = Earliest(as_launchers_see(unsent))
    cause = Earliest(death for death in unsent if death.kind not in NO_CAUSE)
    terminated = [death for death in deaths if death.kind is DeathKind.TERMINATED]
    strength = {death.rank: STRENGTH[death.kind] for death in deaths}
    for death in deaths:
        if death.kind is DeathKind.KILLED and death.rank in together:
            strength[death.rank] = MANY_KILLS
    for death in terminated:
        # Several at one moment are a launcher's if another death is as near.
        is_late = death.rank in together and cause.is_reported_before(death, -JITTER_S)
        is_first = not any_unsent.is_reported_before(death) and not is_late
        if is_first and 2 * len(terminated) <= ranks:
            strength[death.rank] = FIRST_TERMINATED
    return strength
