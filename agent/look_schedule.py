"""When each candidate is looked at again, within a budget of descriptors. Decided by value."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count

from agent.candidates import Candidate
from agent.config import DESCRIPTOR_BURST, DESCRIPTORS_PER_S, LOOK_AGAIN_S

HELPER_WAIT_S = 8.0
"""What a rank forks is looked at later: it has hundreds of inherited descriptors and no page."""

RANK_WAIT_SHARE = 0.25
"""A rank without a page is looked at after another quarter of its age: importing torch may take
10 s or 60 s, and its page is found that much later at most."""


OTHERS_EVERY = 4
"""One look in so many is for processes without a rank in their environment."""

_Due = tuple[float, int, Candidate]


class LookSchedule:
    """A queue of candidates by time, and a purse of descriptors that fills again slowly."""

    def __init__(self) -> None:
        self._queue: list[_Due] = []
        self._order = count()
        self._descriptors = float(DESCRIPTOR_BURST)
        self._filled_at: float | None = None

    def add(self, candidate: Candidate, now: float, *, helper: bool) -> None:
        """Take in a new candidate; a helper has a rank with a page above it."""
        self._push(candidate, now + (HELPER_WAIT_S if helper else 0.0))

    def run(
        self,
        now: float,
        *,
        look: Callable[[Candidate], int],
        is_rank: Callable[[Candidate], bool],
    ) -> None:
        """Look at what is due, ranks first, while there are descriptors left to spend.

        `look` returns the links it read, or -1 when the candidate is gone.
        """
        self._fill(now)
        due: list[_Due] = []
        while self._queue and self._queue[0][0] <= now:
            due.append(heapq.heappop(self._queue))
        due = in_turn(due, is_rank)
        for place, (_, _, candidate) in enumerate(due):
            if self._descriptors <= 0:
                for late in due[place:]:
                    heapq.heappush(self._queue, late)
                return
            spent = look(candidate)
            candidate.looks += 1
            if spent >= 0:
                candidate.cost = spent
                self._descriptors -= spent
                self._push(candidate, now + wait_after(candidate, now, is_rank=is_rank(candidate)))

    def _fill(self, now: float) -> None:
        if self._filled_at is not None:
            earned = (now - self._filled_at) * DESCRIPTORS_PER_S
            self._descriptors = min(float(DESCRIPTOR_BURST), self._descriptors + earned)
        self._filled_at = now

    def _push(self, candidate: Candidate, at: float) -> None:
        heapq.heappush(self._queue, (at, next(self._order), candidate))


def in_turn(due: list[_Due], is_rank: Callable[[Candidate], bool]) -> list[_Due]:
    """Order what is due: ranks first, then who may be one, and every fourth is anybody else.

    Among ranks the cheap ones go first: a rank with thousands of descriptors costs the others
    nothing. Nobody waits for ever for somebody else's many processes.
    """
    ranks = [each for each in due if is_rank(each[2])]
    ranks.sort(key=lambda each: (each[2].cost, each[:2]))
    rest = sorted((each for each in due if not is_rank(each[2])), key=lambda each: each[:2])
    claiming = deque(each for each in rest if each[2].claim is not None)
    others = deque(each for each in rest if each[2].claim is None)
    while claiming or others:
        turn = others if not claiming or (others and len(ranks) % OTHERS_EVERY == 0) else claiming
        ranks.append(turn.popleft())
    return ranks


def wait_after(candidate: Candidate, now: float, *, is_rank: bool) -> float:
    """Return how long to wait for the next look."""
    wait_s = LOOK_AGAIN_S[min(max(candidate.looks, 1), len(LOOK_AGAIN_S)) - 1]
    if is_rank:
        wait_s = max(LOOK_AGAIN_S[0], RANK_WAIT_SHARE * (now - candidate.first_seen))
    return min(wait_s, LOOK_AGAIN_S[-1])
