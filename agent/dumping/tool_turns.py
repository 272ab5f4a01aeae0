"""Turns at py-spy, for threads: owners share them, see `watchtower/fair_places.py`."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from agent.config import PY_SPY_AT_ONCE
from watchtower.fair_places import FairPlaces


class ToolTurns:
    """Hands on the places from owner to owner; one owner never has the last one."""

    def __init__(self) -> None:
        self._places = FairPlaces(PY_SPY_AT_ONCE)
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def take(self, owner: str, order: tuple[int, ...], deadline: float) -> Iterator[bool]:
        """Hold a place for the length of the block; False if there is none by the deadline.

        The lowest order is first among those of an owner. Its first number is how often in a row
        the tool had to be ended: such a dump comes after those of all owners, and leaves a place.
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
