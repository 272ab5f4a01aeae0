"""Decides which ranks are watched if a node has more than fit into a report. Pure.

Owners have equal shares. Other owners can use what one of them does not need. Within a share, a job
with thousands of ranks on one node is a mistake or an attack, so the other jobs come before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set

from agent.discovery.found_rank import FoundRank
from watchtower.service.fair_order import by_turns
from watchtower.wire.bounds import MAX_RANKS_PER_NODE

MAX_ENDED = 256
"""Ended ranks kept; the oldest are dropped. Otherwise a job that restarts in a loop fills memory.
"""

MAX_LIVING = MAX_RANKS_PER_NODE - MAX_ENDED
"""Living ranks watched. These and the ended ranks fit into a report."""

LARGE_JOB = MAX_LIVING // 4
"""Ranks of one job on one node above which the job comes after all others."""


def keep_within_quota(
    ranks: Iterable[FoundRank], watched: Set[int]
) -> tuple[list[FoundRank], list[FoundRank]]:
    """Return the ranks to watch, in the order given, and those that are left out.

    Owners take turns. Within one owner these ranks are dropped first, in this order: ranks of large
    jobs, ranks not watched before, ranks of bigger jobs, ranks without a page, younger ranks.
    """
    every = list(ranks)
    if len(every) <= MAX_LIVING:
        return every, []
    sizes = Counter(rank.job for rank in every)
    by_worth = sorted(
        every,
        key=lambda rank: (
            sizes[rank.job] > LARGE_JOB,
            rank.pid not in watched,
            sizes[rank.job],
            not rank.has_page,
            rank.process.start_time,
            rank.pid,
        ),
    )
    by_worth = list(by_turns((rank.job.owner, rank) for rank in by_worth))
    kept = {rank.pid for rank in by_worth[:MAX_LIVING]}
    return [rank for rank in every if rank.pid in kept], by_worth[MAX_LIVING:]
