"""When each candidate is checked again, within a budget of descriptors. Decided by value."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count, zip_longest

from agent.discovery.candidates import Candidate
from watchtower.token_bucket import TokenBucket

CHECK_AGAIN_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""When a process that may become a rank is checked again; the last one repeats."""

DESCRIPTORS_PER_S = 200
"""Links read per second in the search for pages: at 5 us each a tenth of a percent of a core."""

DESCRIPTORS_PER_CANDIDATE_S = 0.25
"""On a node with ten thousand processes more are read: each has its turn within half a minute."""

DESCRIPTOR_BURST = 4000
"""Links read at once after a quiet time: eight trainers that start together are found at once."""

HELPER_WAIT_S = 8.0
"""What a rank forks is checked later: it has hundreds of inherited descriptors and no page."""

RANK_WAIT_SHARE = 0.25
"""A rank without a page is checked after another quarter of its age: importing torch may take
10 s or 60 s, and its page is found that much later at most."""


_Due = tuple[float, int, Candidate]


class CheckSchedule:
    """A queue of candidates by time, and a budget of descriptors that grows again slowly."""

    def __init__(self) -> None:
        self._queue: list[_Due] = []
        self._order = count()
        self._descriptors = TokenBucket(DESCRIPTOR_BURST, DESCRIPTORS_PER_S)

    def add(self, candidate: Candidate, now: float, *, helper: bool) -> None:
        """Take in a new candidate; a helper has a rank with a page above it."""
        self._push(candidate, now + (HELPER_WAIT_S if helper else 0.0))

    def run(
        self,
        now: float,
        *,
        check: Callable[[Candidate], int],
        is_rank: Callable[[Candidate], bool],
    ) -> None:
        """Check what is due, ranks first, while there are descriptors left to spend.

        `check` returns the links it read, or -1 when the candidate is gone.
        """
        each_s = DESCRIPTORS_PER_CANDIDATE_S * len(self._queue)
        self._descriptors.per_s = max(DESCRIPTORS_PER_S, each_s)
        due: list[_Due] = []
        while self._queue and self._queue[0][0] <= now:
            due.append(heapq.heappop(self._queue))
        due = in_turn(due, is_rank)
        for place, (_, _, candidate) in enumerate(due):
            if self._descriptors.left(now) <= 0:
                for late in due[place:]:
                    heapq.heappush(self._queue, late)
                return
            spent = check(candidate)
            candidate.checks += 1
            if spent >= 0:
                candidate.cost = spent
                self._descriptors.spend(now, spent)
                self._push(candidate, now + wait_after(candidate, now, is_rank=is_rank(candidate)))

    def _push(self, candidate: Candidate, at: float) -> None:
        heapq.heappush(self._queue, (at, next(self._order), candidate))


def in_turn(due: list[_Due], is_rank: Callable[[Candidate], bool]) -> list[_Due]:
    """Order what is due: in turn from the ranks, from those that may be one, and from the rest.

    Among ranks the cheap ones go first: a rank with thousands of descriptors costs the others
    nothing. No process waits for ever for another owner's many processes.
    """
    ranks = sorted((each for each in due if is_rank(each[2])), key=lambda e: (e[2].cost, e[:2]))
    rest = sorted((each for each in due if not is_rank(each[2])), key=lambda each: each[:2])
    claiming = [each for each in rest if each[2].claim is not None]
    others = [each for each in rest if each[2].claim is None]
    # Of each kind one after the other, two of the ranks.
    turns = zip_longest(ranks[::2], ranks[1::2], claiming, others)
    return [each for turn in turns for each in turn if each is not None]


def wait_after(candidate: Candidate, now: float, *, is_rank: bool) -> float:
    """Return how long to wait for the next check."""
    wait_s = CHECK_AGAIN_S[min(max(candidate.checks, 1), len(CHECK_AGAIN_S)) - 1]
    if is_rank:
        wait_s = max(CHECK_AGAIN_S[0], RANK_WAIT_SHARE * (now - candidate.first_seen))
    return min(wait_s, CHECK_AGAIN_S[-1])
