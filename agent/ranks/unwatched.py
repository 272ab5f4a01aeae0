"""Decides which ranks are watched if a node has more than fit into a report, and counts the
processes that seem to be ranks and are not watched. Pure.

Owners have equal shares. Other owners can use what one of them does not need. Within a share, a job
with thousands of ranks on one node is a mistake or an attack, so the other jobs come before it.

A process seems to be a rank if it has a rank that cannot be right, takes part in collectives, uses
a GPU below a launcher, or is of a group in which others have ranks. Helpers of a rank are not
counted, and neither are programs that only import torch or only use a GPU.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from agent.ranks.found_rank import FoundRank
from watchtower.service.sharing import by_turns
from watchtower.wire.bounds import MAX_NAME, MAX_RANKS_PER_NODE, MAX_TEXT
from watchtower.wire.report import (
    MAX_UNWATCHED,
    MAX_UNWATCHED_PIDS,
    OTHER_REASONS,
    OVER_LIMIT,
    Unwatched,
)
from watchtower.writing.printable import printable

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


WRONG_RANK, NO_RANK, NOT_LIKE_GROUP = "wrong_rank", "no_rank", "not_like_group"
HIDDEN_ENVIRONMENT, NOT_READABLE = "hidden_environment", "not_readable"

NAMED_PIDS, SHOWN_OF_NAME = 3, 64

HEARTBEAT_HELP = "or call Heartbeat(rank=..., world_size=...) of watchtower_heartbeat"
SENTENCES = {
    OVER_LIMIT: f"not watched: the limit is {MAX_LIVING} on one node",
    WRONG_RANK: "not watched under the right rank: {detail}. Correct the variables of the rank "
    "where the job starts",
    NO_RANK: "not watched: the threads show collectives or a GPU, but no variable of the "
    f"environment names a rank. Set RANK and WORLD_SIZE in the program, {HEARTBEAT_HELP}",
    NOT_LIKE_GROUP: "not watched: other processes of the group have set a rank, and this {detail} "
    f"has not. Set RANK and WORLD_SIZE in it, too, {HEARTBEAT_HELP}",
    HIDDEN_ENVIRONMENT: "not watched: a title was written over the environment, and the present "
    f"one cannot be read: {{detail}}. Let the program set no title, {HEARTBEAT_HELP}",
    NOT_READABLE: "not watched: the agent may not read the environment. Give it CAP_SYS_PTRACE and "
    "CAP_DAC_READ_SEARCH",
    OTHER_REASONS: "not watched: there are too many to list",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnwatchedProcess:
    """One process that seems to be a rank and is not watched, or under a rank that cannot be
    right."""

    pid: int
    owner: str
    job: str
    reason: str
    detail: str = ""
    """What `SENTENCES` needs of this process."""


def count_unwatched(processes: Iterable[UnwatchedProcess]) -> tuple[Unwatched, ...]:
    """Return one entry for each reason, owner and job. If there are too many, owners take turns,
    and the last entry counts the others.
    """
    groups: dict[tuple[str, str, str], list[UnwatchedProcess]] = defaultdict(list)
    for each in processes:
        groups[each.reason, each.owner, each.job].append(each)
    turns = list(by_turns((owner, group) for (_, owner, _), group in groups.items()))
    if len(turns) <= MAX_UNWATCHED:
        return tuple(map(_describe, turns))
    rest = [each for group in turns[MAX_UNWATCHED - 1 :] for each in group]
    others = [
        UnwatchedProcess(pid=each.pid, owner="", job="", reason=OTHER_REASONS) for each in rest
    ]
    return (*map(_describe, turns[: MAX_UNWATCHED - 1]), _describe(others))


def _describe(group: Sequence[UnwatchedProcess]) -> Unwatched:
    first, pids = group[0], tuple(sorted(each.pid for each in group))
    count = len(pids)
    named = f"pid {', '.join(map(str, pids[:NAMED_PIDS]))}{', ...' if count > NAMED_PIDS else ''}"
    subject = f"{count} processes" if count > 1 else "1 process"
    subject += f" of {printable(first.owner, SHOWN_OF_NAME)}" if first.owner else ""
    subject += f" in job {printable(first.job, SHOWN_OF_NAME)!r}" if first.job else ""
    verb = "are" if count > 1 else "is"
    why = SENTENCES[first.reason].format(detail=first.detail)
    return Unwatched(
        reason=first.reason,
        owner=first.owner[:MAX_NAME],
        job=first.job[:MAX_NAME],
        count=count,
        pids=pids[:MAX_UNWATCHED_PIDS],
        text=printable(f"{subject} ({named}) {verb} {why}", MAX_TEXT),
    )
