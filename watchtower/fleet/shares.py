"""Fair shares: the order of jobs where there are fewer places than jobs.

Owners take turns, so that many jobs of one owner do not hide the jobs of another one. The jobs of
one owner are in the order of their urgency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from watchtower.service.fair_order import by_turns

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
