"""Fair shares: which jobs come first where there are fewer places than jobs.

Owners take turns, so that no owner's jobs hide those of another one, however many there are. The
jobs of one owner come by urgency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from watchtower.fair_order import by_turns

OPEN_INCIDENT, IN_TROUBLE, CALM, ENDED = range(4)
"""Urgency of a job: the lower, the sooner it has its turn among the jobs of its owner."""

ALWAYS_FIRST = 64
"""Jobs in trouble of one owner that come before all calm jobs. Further ones wait for their turn as
calm jobs do: an owner that has hundreds of jobs in trouble does not hide healthy ones."""


class Candidate(NamedTuple):
    """A job that wants a place."""

    owner: str
    """Key of the fair shares: the owner of the job, else the node that reported it first."""
    urgency: int
    since: float
    """Among jobs of the same urgency the lowest comes first: when the incident opened."""
    name: str


def rank_fairly(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return all candidates; those who get a place come first."""
    by_urgency = sorted(candidates, key=lambda each: (each[1:], each.owner))
    turns: Counter[str] = Counter()
    first, others = list[Candidate](), list[Candidate]()
    for each in by_turns((each.owner, each) for each in by_urgency):
        is_first = each.urgency <= IN_TROUBLE and turns[each.owner] < ALWAYS_FIRST
        turns[each.owner] += 1
        (first if is_first else others).append(each)
    return first + others
