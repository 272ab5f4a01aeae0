"""How owners share: the order of things, places, room, time, and rates. Standard library only.

* The order of a list: `by_turns`. Which names are kept of a history: `keep_fairly`. The places of
  jobs on a page or in a transaction: `rank_fairly`.
* Room (jobs, ranks, bytes) whose total is stored: `Quota`. A few places that are counted each time:
  `has_share`. The rule is the same: an owner may have as much as is left. So the first owner gets
  at most a half and the second one a quarter, and a new owner always gets some. The number of
  owners and the size of a share need not be known.
* Places for which requests wait: `FairPlaces`. The tower waits with asyncio (`tower/turns.py`), and
  the agent with threads (`agent/dumps/turns.py`).
* Work whose duration is only known afterwards: `FairUse`. The owner with the least use is next.
* Rates: `TokenBucket`, and `TokenBuckets` by key. Invented keys make no tokens.

`now` is an argument: the time of any clock in seconds.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Any, Generic, NamedTuple, TypeVar

_T = TypeVar("_T")


def by_turns(
    items: Iterable[tuple[Hashable, _T]], had: Mapping[Any, int] | None = None
) -> Iterator[_T]:
    """Yield items by turns: the first item of each key, then the second item of each key, etc.

    `had` is the number of turns that a key has already had. Such a key waits until the others have
    had as many.
    """
    places: Counter[Hashable] = Counter(had)
    turns = []
    for key, item in items:
        turns.append((places[key], item))
        places[key] += 1
    turns.sort(key=lambda turn: turn[0])
    return (item for _, item in turns)


OPEN_INCIDENT, IN_TROUBLE, CALM, ENDED = range(4)
"""Urgency of a job. Among the jobs of one owner, the lowest number is first."""

ALWAYS_FIRST = 64
"""Most jobs in trouble of one owner that come before all calm jobs. Its further jobs in trouble
take turns with calm jobs, so that hundreds of them do not hide healthy jobs."""


class Contender(NamedTuple):
    """A job that wants a place."""

    owner: str
    """Key of the fair shares: the job's owner; if not known, the node that reported it first."""
    urgency: int
    since: float
    """When the incident opened. Among jobs of the same urgency, the lowest value is first."""
    name: str


def keep_fairly(newest_first: Iterable[tuple[str, str]], limit: int) -> set[str]:
    """Return the names that are kept of pairs of owner and name, at most `limit`.

    The owner with the most names loses its oldest, so that one owner's many short jobs do not push
    out what is known of the jobs of others.
    """
    return set(islice(by_turns((owner, name) for owner, name in newest_first), limit))


def rank_fairly(contenders: Iterable[Contender]) -> list[Contender]:
    """Return all contenders in the order in which they get places."""
    by_urgency = sorted(contenders, key=lambda each: (each[1:], each.owner))
    turns: Counter[str] = Counter()
    first, others = list[Contender](), list[Contender]()
    for each in by_turns((each.owner, each) for each in by_urgency):
        is_first = each.urgency <= IN_TROUBLE and turns[each.owner] < ALWAYS_FIRST
        turns[each.owner] += 1
        (first if is_first else others).append(each)
    return first + others


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


class Quota:
    """Counts how much of one limited resource each owner uses."""

    def __init__(self) -> None:
        self.total = 0
        self._by_owner: Counter[str] = Counter()

    def has_room(self, owner: str, limit: int, count: int = 1) -> bool:
        """Return whether an owner may use `count` more, one after the other.

        For an unknown owner only `limit` counts.
        """
        before = count - 1  # those that it has when it takes the last one
        left = limit - self.total - before
        return left > 0 and (not owner or self._by_owner[owner] + before < left)

    def is_nearly_full(self, owner: str, limit: int) -> bool:
        """Return whether an owner uses more than half of what it may use."""
        return bool(owner) and 2 * self._by_owner[owner] > limit - self.total

    def count(self, owner: str) -> int:
        """Return how much an owner uses."""
        return self._by_owner[owner]

    def add(self, owner: str, count: int) -> None:
        """Record that an owner uses `count` more; a negative count means less."""
        self.total += count
        self._by_owner[owner] += count
        if not self._by_owner[owner]:
            del self._by_owner[owner]


Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class TokenBucket:
    """A bucket of at most `burst` tokens that gets `per_s` tokens per second. It starts full."""

    burst: float
    per_s: float
    _left: float = inf
    _at: float = -inf

    def left(self, now: float) -> float:
        """Return the number of tokens; it is negative after more were spent than existed."""
        if now > self._at:
            self._left = min(self.burst, self._left + (now - self._at) * self.per_s)
            self._at = now
        return self._left

    def take(self, now: float, count: float = 1.0) -> bool:
        """Take `count` tokens. Return False, and take none, if there are fewer."""
        if self.left(now) < count:
            return False
        self._left -= count
        return True

    def spend(self, now: float, count: float) -> None:
        """Take `count` tokens for work that is already done, even if there are fewer."""
        self._left = self.left(now) - count


class TokenBuckets(Generic[Key]):
    """A bucket for each key, at most `most` buckets.

    If there are `most` keys, a new key takes over the least recently used bucket with its remaining
    tokens. So invented keys do not create tokens.
    """

    def __init__(self, burst: float, per_s: float, most: int) -> None:
        self._burst, self._per_s, self._most = burst, per_s, most
        self._buckets: dict[Key, TokenBucket] = {}
        """In the order of the last use, most recent last."""

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._buckets)

    def find(self, key: Key) -> TokenBucket | None:
        """Return a key's bucket; None if it has none. This does not count as a use."""
        return self._buckets.get(key)

    def use(self, key: Key) -> TokenBucket:
        """Return a key's bucket, a new one if it has none, and mark it as used."""
        bucket = self._buckets.pop(key, None) or self._make()
        self._buckets[key] = bucket
        return bucket

    def _make(self) -> TokenBucket:
        if len(self._buckets) < self._most:
            return TokenBucket(self._burst, self._per_s)
        return self._buckets.pop(next(iter(self._buckets)))
