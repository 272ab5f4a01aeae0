"""When each candidate is checked again, and how many descriptors are read for that."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count, zip_longest

from agent.ranks.candidates import Candidate
from watchtower.service.sharing import TokenBucket

CHECK_AGAIN_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""Seconds between checks of a process that may become a rank. The last value repeats."""

DESCRIPTORS_PER_S = 200
"""Links read per second in the search for pages. At 5 us each this is 0.1 % of a core."""

DESCRIPTORS_PER_CANDIDATE_S = 0.25
"""Links per second and candidate. On a node with ten thousand processes the budget grows with their
number, so that each process is checked within half a minute.
"""

DESCRIPTOR_BURST = 4000
"""Links read at once after a quiet time, so that eight trainers that start together are found at
once.
"""

HELPER_WAIT_S = 8.0
"""Delay of the first check of a process that a rank forked. Such a process has hundreds of
inherited descriptors and no page of its own.
"""

RANK_WAIT_SHARE = 0.25
"""A rank without a page is checked again after another quarter of its age. Importing torch may take
10 s or 60 s; its page is found with at most that delay.
"""

LIKELY_WAIT_SHARE = 0.125
"""The same for a program that may still become a rank. Its rank is found with at most that delay.
"""


_Due = tuple[float, int, Candidate]


class CheckSchedule:
    """A queue of candidates ordered by time, and a token bucket of descriptors."""

    def __init__(self) -> None:
        self._queue: list[_Due] = []
        self._order = count()
        self._descriptors = TokenBucket(DESCRIPTOR_BURST, DESCRIPTORS_PER_S)

    def add(self, candidate: Candidate, now: float, *, helper: bool) -> None:
        """Add a new candidate. `helper`: a rank with a page is among its ancestors."""
        self._push(candidate, now + (HELPER_WAIT_S if helper else 0.0))

    def run(
        self,
        now: float,
        *,
        check: Callable[[Candidate], int],
        is_rank: Callable[[Candidate], bool],
        is_likely: Callable[[Candidate], bool] = lambda _: False,
    ) -> None:
        """Check the candidates that are due, ranks first, until the budget is used up.

        `check` returns how many links it read, or -1 if the candidate has ended. `is_likely`
        returns whether a candidate may become a rank soon.
        """
        each_s = DESCRIPTORS_PER_CANDIDATE_S * len(self._queue)
        self._descriptors.per_s = max(DESCRIPTORS_PER_S, each_s)
        due: list[_Due] = []
        while self.has_due(now):
            at, _, candidate = entry = heapq.heappop(self._queue)
            if at == candidate.due_at:  # else it was checked earlier
                due.append(entry)
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
                wait_s = wait_after(
                    candidate, now, is_rank=is_rank(candidate), is_likely=is_likely(candidate)
                )
                self._push(candidate, now + wait_s)

    def hasten(self, candidate: Candidate, now: float) -> None:
        """Let a candidate be due now."""
        if candidate.due_at > now:
            self._push(candidate, now)

    def has_due(self, now: float) -> bool:
        """Return whether a candidate is due."""
        return bool(self._queue) and self._queue[0][0] <= now

    def _push(self, candidate: Candidate, at: float) -> None:
        candidate.due_at = at
        heapq.heappush(self._queue, (at, next(self._order), candidate))


def in_turn(due: list[_Due], is_rank: Callable[[Candidate], bool]) -> list[_Due]:
    """Return the due candidates in turn: ranks, processes that may be ranks, all others.

    Among ranks, those with few descriptors come first: a rank with thousands of descriptors does
    not delay the others. Many processes of one owner cannot delay another owner's process forever.
    """
    ranks = sorted((each for each in due if is_rank(each[2])), key=lambda e: (e[2].cost, e[:2]))
    rest = sorted((each for each in due if not is_rank(each[2])), key=lambda each: each[:2])
    claiming = [each for each in rest if each[2].claim is not None]
    others = [each for each in rest if each[2].claim is None]
    # One of each kind in turn, but two ranks.
    turns = zip_longest(ranks[::2], ranks[1::2], claiming, others)
    return [each for turn in turns for each in turn if each is not None]


def wait_after(candidate: Candidate, now: float, *, is_rank: bool, is_likely: bool) -> float:
    """Return the seconds to wait before the next check."""
    wait_s = CHECK_AGAIN_S[min(max(candidate.checks, 1), len(CHECK_AGAIN_S)) - 1]
    known_s = now - candidate.first_seen
    if is_rank:
        wait_s = max(CHECK_AGAIN_S[0], RANK_WAIT_SHARE * known_s)
    elif is_likely:
        wait_s = max(CHECK_AGAIN_S[0], LIKELY_WAIT_SHARE * (known_s + candidate.age_s))
    return min(wait_s, CHECK_AGAIN_S[-1])
