"""Which dumps run at the same time. Owners share the places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from watchtower.service.sharing import by_turns, has_share

DUMPS_AT_ONCE = 8
"""Jobs dumped at the same time on one node. One owner has at most four."""

_T = TypeVar("_T")


class DumpSlots:
    """The slots at one moment, given the owners of the running dumps."""

    def __init__(self, running: Iterable[str]) -> None:
        self._held = Counter(running)

    def has_room(self, owner: str) -> bool:
        """Return whether one more dump of this owner may start."""
        return has_share(self._held, owner, DUMPS_AT_ONCE)

    def choose(self, wanted: Iterable[tuple[str, _T]]) -> list[_T]:
        """Return the dumps that may start, and occupy their slots. `wanted` has pairs of owner and
        dump.

        Owners with the fewest dumps come first. The dumps of one owner keep the order given.
        """
        pairs = [(owner, (owner, each)) for owner, each in wanted]
        chosen = []
        for owner, each in by_turns(pairs, had=self._held):
            if self.has_room(owner):
                self._held[owner] += 1
                chosen.append(each)
        return chosen
