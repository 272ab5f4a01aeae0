"""Every doubt of an accusation: its ceiling, and the sentence that a person reads.

A confidence is never above the lowest ceiling of its doubts.
"""

from __future__ import annotations

from typing import NamedTuple

CANDIDATE = 0.45
"""Below `MIN_CONFIDENCE`: such a doubt leaves candidates, and no culprit."""


class Doubt(NamedTuple):
    """A limit of a confidence, and why."""

    ceiling: float
    sentence: str
    halves: bool = False
    """It contradicts the accusation: what else speaks for it counts half."""


# Of every accusation
NO_HEARTBEATS = Doubt(
    0.85, "no rank has heartbeats: only stack samples show that the job has stopped"
)
STACK_MISSING = Doubt(0.85, "a rank without a stack sample may be the cause")
SEVERAL_DEATHS = Doubt(0.9, "several ranks ended at the same moment")

# Of ranks that are elsewhere while others wait
LEADS = Doubt(1.0, "the rank is more than one step ahead of the waiting ranks", halves=True)
MAY_NOT_BE_AWAITED = Doubt(
    CANDIDATE, "the rank may itself wait for another rank, or may still make progress"
)
CAME_OUT = Doubt(CANDIDATE, "the rank has just left a collective that others are still in")
ALL_GO_ON = Doubt(CANDIDATE, "the ranks changed between two samples: none may be blocked")
GLIMPSED = Doubt(
    0.85, "the place of the rank changed between samples: the rank may be making progress"
)
GAVE_UP = Doubt(
    0.8, "the waiting ranks have ended: the rank may have reached this place only afterwards"
)
NO_RANK_WAITS = Doubt(0.55, "no stack or collective log shows that a rank waits for it")
BY_THREADS = Doubt(
    0.85, "the others wait in other threads: it is inferred that their main threads wait"
)
PRESUMED = Doubt(0.75, "it is inferred that the others wait: they have no collective log")
SCATTERED = Doubt(0.6, "the others are at several lines of one function: one line may be a lock")
MANY_ELSEWHERE = Doubt(CANDIDATE, "most ranks do not wait")
COARSE = Doubt(0.8, "it is not known what the rank does there")
PAIR = Doubt(0.6, "only two ranks: either may be in a call that the other never makes")
NO_ANSWER = Doubt(CANDIDATE, "the rank did not answer: its state is not known")
FED_BY_PROCESS = Doubt(
    0.8, "the rank waits for a process queue: no stack frame shows that it loads a batch"
)
GIL_INSIDE_CALL = Doubt(
    0.6, "the main thread of the rank is in a collective: it may also wait for others"
)

# Of set-up
LATECOMER = Doubt(0.7, "the rank is still in set-up: it may be creating a process group of its own")
MOST_LATECOMERS = Doubt(CANDIDATE, "most ranks are still in set-up")
MOST_OUTSIDE = Doubt(CANDIDATE, "most ranks are not in set-up")
MOST_MISSING = Doubt(CANDIDATE, "most ranks were never seen")

# Of ends, nodes and held ranks
CONNECTION_LOST = Doubt(0.6, "a connection error: the other end may be outside the job")
CONNECTION_LOST_AMONG_OTHERS = Doubt(
    CANDIDATE, "a connection error while other ranks are in trouble"
)
LEFT_AFTERWARDS = Doubt(
    0.75, "no rank is waiting: the job may have ended normally, with errors at exit"
)
MOST_LEFT = Doubt(CANDIDATE, "most ranks have exited")
AGENT_ALONE = Doubt(0.92, "only the agent may have failed, while a rank of its node hung")
NODE_LEFT_EARLIER = Doubt(CANDIDATE, "the job made steps after the node stopped reporting")
OTHERS_ELSEWHERE = Doubt(
    CANDIDATE, "another rank, on a live node, does not wait: it may hold up the job"
)
ALL_BLOCKED = Doubt(
    CANDIDATE, "all ranks on several nodes are blocked: the cause is something that they share"
)

# Of ranks in different calls
LINES_ALONE = Doubt(0.75, "without collective logs, only source lines show which calls differ")
LINES_MAY_FIT = Doubt(
    CANDIDATE, "without collective logs, calls at these lines may belong together"
)
CONDITION_UNKNOWN = Doubt(
    0.8, "it is not known whether a loop ended or a condition differs between the ranks"
)
EVEN_SPLIT = Doubt(CANDIDATE, "no majority of the ranks makes the same call")
LOGS_MISSING = Doubt(CANDIDATE, "some members of these groups have no collective log")
BOTH_AHEAD = Doubt(CANDIDATE, "both ends of the exchange seem to be ahead of each other")
CYCLE_UNPROVEN = Doubt(
    CANDIDATE, "some ranks of the cycle have no collective log: they may not be missing"
)
MIXED_CYCLE = Doubt(0.55, "a skipped or repeated call would cause the same cycle")
ONE_OF_CYCLE = Doubt(0.55, "one rank may have called the wrong group; it is not known which rank")

# Of jobs without a laggard
SAME_LINE = Doubt(0.7, "without collective logs: a rank may be at this line in another iteration")
SOME_LEFT = Doubt(0.7, "some ranks have left the call: the others may wait for something else")
CALL_QUEUED = Doubt(
    CANDIDATE, "the collective log does not record whether the call has begun on every rank"
)
COUNTS_APART = Doubt(CANDIDATE, "some ranks are several calls ahead: they may count other calls")
ROOTS_MAY_DIFFER = Doubt(CANDIDATE, "ranks that passed different roots would wait in the same way")

# Of slow jobs
ONE_OF_TWO = Doubt(0.7, "only two ranks: one of them always waits less")
UNCOUNTED = Doubt(CANDIDATE, "some ranks have too few samples")
