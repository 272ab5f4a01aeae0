"""Which dumps run at the same time, and which process is next at py-spy. Owners share both."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeVar

from watchtower.service.sharing import FairPlaces, by_turns, has_share

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
