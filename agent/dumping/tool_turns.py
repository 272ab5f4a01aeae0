"""Turns at py-spy, for threads. Owners share them, see `watchtower/service/fair_places.py`."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from watchtower.service.fair_places import FairPlaces

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
