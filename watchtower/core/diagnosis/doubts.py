"""Every reason to be less sure of an accusation: its ceiling, and the sentence that a person reads.

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
NO_HEARTBEATS = Doubt(0.85, "no rank has heartbeats: that the job stands still is inferred")
STACK_MISSING = Doubt(0.85, "the stack of some rank is missing: that rank may be the one")
SEVERAL_DEATHS = Doubt(0.9, "several ranks ended at one moment")

# Of ranks that are elsewhere while others wait
LEADS = Doubt(1.0, "the rank is more than one step ahead of those that wait", halves=True)
MAY_NOT_BE_AWAITED = Doubt(CANDIDATE, "the rank may itself wait for another one, or go on")
CAME_OUT = Doubt(CANDIDATE, "the rank has just left a collective while others are in one")
ALL_GO_ON = Doubt(CANDIDATE, "no rank is seen to be held up: ranks changed between two samples")
GLIMPSED = Doubt(0.85, "no two samples show the rank at one place: it may have been on its way")
GAVE_UP = Doubt(0.8, "the ranks that waited have ended: the rank may have gone on only afterwards")
NO_RANK_WAITS = Doubt(0.55, "no rank is seen to wait for it")
BY_THREADS = Doubt(0.85, "the others wait in threads: that their main threads wait is inferred")
PRESUMED = Doubt(0.75, "that the others wait is inferred: they have no collective log")
SCATTERED = Doubt(0.6, "the others are at several lines of one function: one may be a lock")
MANY_ELSEWHERE = Doubt(CANDIDATE, "more ranks are elsewhere than wait")
COARSE = Doubt(0.8, "what the rank does there is not known")
PAIR = Doubt(0.6, "of two ranks, either may be in a call that the other never makes")
NO_ANSWER = Doubt(CANDIDATE, "the rank did not answer: what it does is not known")
FED_BY_PROCESS = Doubt(0.8, "no frame shows that it loads a batch: a queue of processes is empty")
GIL_INSIDE_CALL = Doubt(0.6, "its main thread is inside a collective and may wait for others, too")

# Of set-up
LATECOMER = Doubt(0.7, "still in set-up while others are further: it may create a group of its own")
MOST_LATECOMERS = Doubt(CANDIDATE, "more ranks are in set-up than are further")
MOST_OUTSIDE = Doubt(CANDIDATE, "more ranks are outside of set-up than in it")
MOST_MISSING = Doubt(CANDIDATE, "more ranks were never seen than are there")

# Of ends, nodes and held ranks
CONNECTION_LOST = Doubt(0.6, "a connection error: its other end may be outside of the job")
CONNECTION_LOST_AMONG_OTHERS = Doubt(CANDIDATE, "a connection error, and others are in trouble")
LEFT_AFTERWARDS = Doubt(0.75, "no rank waits any more: it may be an untidy end of the job")
MOST_LEFT = Doubt(CANDIDATE, "more ranks have exited than wait for them")
AGENT_ALONE = Doubt(0.92, "only the agent may have ended while a rank of its node hung")
NODE_LEFT_EARLIER = Doubt(CANDIDATE, "the job still made steps after the node fell silent")
OTHERS_ELSEWHERE = Doubt(CANDIDATE, "a rank that answers is elsewhere: it may hold up the job")
ALL_BLOCKED = Doubt(
    CANDIDATE, "all ranks are blocked, on several nodes: the cause is what they share"
)

# Of ranks in different calls
LINES_ALONE = Doubt(0.75, "without collective logs, only the lines show which calls differ")
LINES_MAY_FIT = Doubt(
    CANDIDATE, "without collective logs, these lines may be calls that fit together"
)
CONDITION_UNKNOWN = Doubt(0.8, "no source shows whether a loop ended or a condition held")
EVEN_SPLIT = Doubt(CANDIDATE, "as many ranks differ as do not")
LOGS_MISSING = Doubt(CANDIDATE, "some members of these groups have no collective log")
BOTH_AHEAD = Doubt(CANDIDATE, "both ends of the exchange look ahead of each other")
CYCLE_UNPROVEN = Doubt(CANDIDATE, "some ranks of the cycle may have come: they have no logs")
MIXED_CYCLE = Doubt(0.55, "a call left out or made twice closes the same cycle")
ONE_OF_CYCLE = Doubt(0.55, "one rank alone may have called the wrong group; which one is not known")

# Of jobs without a laggard
SAME_LINE = Doubt(0.7, "without collective logs, a rank may be in this line in another iteration")
SOME_LEFT = Doubt(0.7, "some ranks have left the call: the others may wait for something else")
CALL_QUEUED = Doubt(CANDIDATE, "the call may not have begun on some rank: this is not recorded")
COUNTS_APART = Doubt(CANDIDATE, "some ranks are several calls further: they may count other calls")
ROOTS_MAY_DIFFER = Doubt(CANDIDATE, "ranks that pass different roots would wait like this, too")

# Of slow jobs
ONE_OF_TWO = Doubt(0.7, "of two ranks, one always waits less")
UNCOUNTED = Doubt(CANDIDATE, "some ranks have too few samples")
