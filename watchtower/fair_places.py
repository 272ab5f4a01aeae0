"""Places at something that few can use at once, shared by owners. Standard library only.

By value: `now` is an argument. The tower waits for a place with asyncio (`tower/turns.py`), the
agent with threads (`agent/dumping/tool_turns.py`).
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

HALF_LIFE_S = 60.0
"""What an owner has used counts half after this long."""

FOUNDER_SHARE_S = 4.0
"""Seconds of one owner's use that its founding node answers for as well. One owner that uses much
adds little to its node's use; a node that invents owners answers for all of them."""

FORGOTTEN_S = 0.001
"""An owner who has used less than this counts as new."""

MAX_USERS = 4096
"""Owners, and founding nodes, whose use is remembered; those who used least make room."""


def has_share(held: Mapping[str, float], owner: str, places: float) -> bool:
    """Return whether an owner may take one more place: if it holds fewer than are left.

    The first owner holds at most half of the places, the second one a quarter. The last free place
    is for an owner that holds none.
    """
    return held.get(owner, 0) < places - sum(held.values())


@dataclass(slots=True, eq=False)
class Ticket:
    """A request for a place, from `ask` until `leave`."""

    owner: str
    founder: str
    """The founding node of the owner's job; empty if it does not matter."""
    leaves_last: bool
    number: int
    """In the order of the requests."""
    since: float | None = None
    """When it got its place; None while it waits."""
    has_left: bool = False


class FairPlaces:
    """A number of places. The owner that has used least is next, within `has_share`.

    What the owner's founding node has used counts if it is more: a node cannot have more turns by
    inventing owners. Among owners of one such node, the owner's own use decides.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._asked = 0
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, list[tuple[tuple[int, ...], int, Ticket]]] = {}
        """By owner, as a heap."""
        self._used = _Uses()
        self._used_by_founder = _Uses()

    def ask(
        self,
        owner: str,
        *,
        founder: str = "",
        order: tuple[int, ...] = (),
        leaves_last: bool = False,
    ) -> Ticket:
        """Wait for a place: among the owner's own requests the lowest `order` is first, then the
        oldest. With `leaves_last` it waits for all others and never takes the last free place."""
        self._asked += 1
        ticket = Ticket(owner, founder, leaves_last, self._asked)
        entry = ((int(leaves_last), *order), ticket.number, ticket)
        heapq.heappush(self._waiting.setdefault(owner, []), entry)
        return ticket

    def hand_out(self, now: float) -> list[Ticket]:
        """Give the free places to whoever is next; return these tickets."""
        given = []
        while ticket := self._next(now):
            heapq.heappop(self._waiting[ticket.owner])
            self._forget_left(ticket.owner)
            self._held[ticket.owner] += 1
            ticket.since = now
            given.append(ticket)
        return given

    def leave(self, ticket: Ticket, now: float) -> None:
        """Give the place back, or wait no longer."""
        if ticket.has_left:
            return
        ticket.has_left = True
        if ticket.since is not None:
            self._held[ticket.owner] -= 1
            self._note_use(ticket, now - ticket.since, now)
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
            ticket: (ticket.leaves_last, *self._use_of(ticket, now), ticket.number)
            for ticket in may
        }
        return min(may, key=order.__getitem__, default=None)

    def _forget_left(self, owner: str) -> None:
        heap = self._waiting.get(owner, [])
        while heap and heap[0][2].has_left:
            heapq.heappop(heap)
        if not heap:
            self._waiting.pop(owner, None)

    def _use_of(self, ticket: Ticket, now: float) -> tuple[float, float]:
        own_s = self._used.of(ticket.owner, now)
        return max(own_s, self._used_by_founder.of(ticket.founder, now)), own_s

    def _note_use(self, ticket: Ticket, took_s: float, now: float) -> None:
        before_s = self._used.of(ticket.owner, now)
        self._used.note(ticket.owner, took_s, now)
        if ticket.founder:
            shared_s = max(0.0, FOUNDER_SHARE_S - before_s)
            self._used_by_founder.note(ticket.founder, min(took_s, shared_s), now)


class _Uses:
    """Seconds that each of many users has used, older ones counting less."""

    def __init__(self) -> None:
        self._used: dict[str, tuple[float, float]] = {}
        """Seconds used, and as of when."""

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
