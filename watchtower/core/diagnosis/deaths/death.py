"""One rank's death, and which of two deaths came first.

The agent of a node sees the end of a process within milliseconds and reports how long ago it was,
so the deaths of one node are in order. Ages of two nodes are apart by what their reports took.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from watchtower.core.diagnosis.position import Position
from watchtower.core.reading.exits import SAME_MOMENT_S, DeathKind, classify_ending
from watchtower.wire.report import Ending

JITTER_S = 0.05
"""Deaths on one node closer than this have no order: an agent in the middle of a report sees both
when the report is made. Launchers check their workers every tenth of a second or less often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """One rank's end."""

    position: Position
    kind: DeathKind
    age_s: float

    @property
    def rank(self) -> int:
        """Global rank."""
        return self.position.rank

    @property
    def node(self) -> str:
        """Node it ran on."""
        return self.position.evidence.node

    @property
    def ending(self) -> Ending | None:
        """Words of its node."""
        return self.position.evidence.ended


def find_deaths(ended: Iterable[Position]) -> tuple[Death, ...]:
    """List the ranks that are gone, the earliest first."""
    deaths = [
        Death(
            position=item,
            kind=classify_ending(item.evidence.ended),
            age_s=item.evidence.ended.age_s if item.evidence.ended else 0.0,
        )
        for item in ended
    ]
    return tuple(sorted(deaths, key=lambda death: (-death.age_s, death.rank)))


def is_before(one: Death, other: Death) -> bool:
    """Return whether one death certainly came before the other."""
    if one.ending is None or other.ending is None:
        return False  # a zombie whose ending no agent has reported yet
    margin_s = JITTER_S if one.node == other.node else SAME_MOMENT_S
    return one.age_s - other.age_s > margin_s


class Earliest:
    """The first of some deaths on each node: enough to tell what came after any of them."""

    def __init__(self, deaths: Iterable[Death]) -> None:
        self._of_node: dict[str, Death] = {}
        for death in sorted(deaths, key=lambda death: -death.age_s):
            if death.ending is not None:
                self._of_node.setdefault(death.node, death)
        self._of_all = next(iter(self._of_node.values()), None)

    def is_before(self, death: Death) -> bool:
        """Return whether one of them certainly came before this death."""
        found = self._of_all, self._of_node.get(death.node)
        return any(one is not None and is_before(one, death) for one in found)

    def is_before_on_node(self, death: Death) -> bool:
        """Return whether one of them certainly came before this death on its own node."""
        one = self._of_node.get(death.node)
        return one is not None and is_before(one, death)

    def is_reported_before(self, death: Death, margin_s: float = 0.0) -> bool:
        """Return whether one of them came before this death by what their nodes report."""
        return self._of_all is not None and self._of_all.age_s - death.age_s > margin_s
