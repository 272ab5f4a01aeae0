"""Turns of owners at a limited resource, and places that only a few of them can use at once.

Standard library only. `now` is an argument, in seconds. The tower waits for a place with asyncio
(`tower/turns.py`), and the agent waits with threads (`agent/dumps/turns.py`).
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

HALF_LIFE_S = 60.0
"""After this many seconds, the past use of an owner counts half."""

FOUNDER_SHARE_S = 4.0
"""Seconds of one owner's use that also count as use of its founding node. One owner with much use
adds little to the use of its node. A node that invents many owners is charged for all of them."""

FORGOTTEN_S = 0.001
"""An owner that has used fewer seconds than this counts as new."""

MAX_USERS = 4096
"""Owners, and founding nodes, whose use is stored. Those with the least use are dropped first."""


def has_share(held: Mapping[str, float], owner: str, places: float) -> bool:
    """Return whether an owner may take one more place: it must hold fewer than are free.

    So the first owner holds at most half of the places, and the second one a quarter. The last free
    place is for an owner without a place.
    """
    return held.get(owner, 0) < places - sum(held.values())


@dataclass(slots=True, eq=False)
class Ticket:
    """A request for a place, from `ask` until `leave`."""

    owner: str
    founder: str
    """The founding node of the owner's job; empty if its use is not counted."""
    leaves_last: bool
    number: int
    """Position in the order of the requests."""
    since: float | None = None
    """Time at which it got its place; None while it waits."""
    has_left: bool = False


class FairPlaces:
    """A number of places. The owner with the least use is next, if `has_share` allows it."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._asked = 0
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, list[tuple[tuple[int, ...], int, Ticket]]] = {}
        """By owner, as a heap."""
        self._use = FairUse()

    def ask(
        self,
        owner: str,
        *,
        founder: str = "",
        order: tuple[int, ...] = (),
        leaves_last: bool = False,
    ) -> Ticket:
        """Add a request for a place and return its ticket.

        Among the requests of one owner the lowest `order` is first, then the oldest. With
        `leaves_last` the request waits for all others and never takes the last free place.
        """
        self._asked += 1
        ticket = Ticket(owner, founder, leaves_last, self._asked)
        entry = ((int(leaves_last), *order), ticket.number, ticket)
        heapq.heappush(self._waiting.setdefault(owner, []), entry)
        return ticket

    def hand_out(self, now: float) -> list[Ticket]:
        """Assign the free places to the next requests and return their tickets."""
        given = []
        while ticket := self._next(now):
            heapq.heappop(self._waiting[ticket.owner])
            self._forget_left(ticket.owner)
            self._held[ticket.owner] += 1
            ticket.since = now
            given.append(ticket)
        return given

    def leave(self, ticket: Ticket, now: float) -> None:
        """Release the place, or cancel the request if it still waits."""
        if ticket.has_left:
            return
        ticket.has_left = True
        if ticket.since is not None:
            self._held[ticket.owner] -= 1
            self._use.note(ticket.owner, ticket.founder, now - ticket.since, now)
            self._held += Counter()  # without zeros
        self._forget_left(ticket.owner)

    def _next(self, now: float) -> Ticket | None:
        first = [heap[0][2] for heap in self._waiting.values()]
        may = [
            ticket
            for ticket in first
            if has_share(self._held, ticket.owner, max(1, self._places - ticket.leaves_last))
        ]
        order = {
            ticket: (
                ticket.leaves_last,
                *self._use.of(ticket.owner, ticket.founder, now),
                ticket.number,
            )
            for ticket in may
        }
        return min(may, key=order.__getitem__, default=None)

    def _forget_left(self, owner: str) -> None:
        heap = self._waiting.get(owner, [])
        while heap and heap[0][2].has_left:
            heapq.heappop(heap)
        if not heap:
            self._waiting.pop(owner, None)


class FairUse:
    """How much each owner has used of a resource. The owner with the least use is next.

    The use of an owner is its own use or that of its founding node, whichever is more: a node
    cannot get more turns by inventing owners. Among owners of one node, the owner's own use
    decides.
    """

    def __init__(self) -> None:
        self._used = _Uses()
        self._used_by_founder = _Uses()

    def of(self, owner: str, founder: str, now: float) -> tuple[float, float]:
        """Return the use of an owner. The lowest value is next."""
        own_s = self._used.of(owner, now)
        founder_s = self._used_by_founder.of(founder, now) if founder else 0.0
        return max(own_s, founder_s), own_s

    def note(self, owner: str, founder: str, took_s: float, now: float) -> None:
        """Record a use of `took_s` seconds. `founder` is empty if its use is not counted."""
        if founder:
            shared_s = max(0.0, FOUNDER_SHARE_S - self._used.of(owner, now))
            self._used_by_founder.note(founder, min(took_s, shared_s), now)
        self._used.note(owner, took_s, now)


class _Uses:
    """Seconds that each of many users has used. Older use counts less, see `HALF_LIFE_S`."""

    def __init__(self) -> None:
        self._used: dict[str, tuple[float, float]] = {}
        """By user: seconds used, and the time of that value."""

    def __len__(self) -> int:
        return len(self._used)

    def of(self, user: str, now: float) -> float:
        used_s, at = self._used.get(user, (0.0, 0.0))
        return used_s * math.pow(0.5, (now - at) / HALF_LIFE_S)

    def note(self, user: str, took_s: float, now: float) -> None:
        self._used[user] = (self.of(user, now) + took_s, now)
        if len(self._used) > MAX_USERS:
            left = {each: self.of(each, now) for each in self._used}
            most = sorted(left, key=left.__getitem__)[-MAX_USERS // 2 :]
            self._used = {each: (left[each], now) for each in most if left[each] > FORGOTTEN_S}
