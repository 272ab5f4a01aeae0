"""Every doubt of an accusation: its kind and its ceiling.

A confidence is never above the lowest ceiling of its doubts. Their sentences are in
`writer/doubts.py`.
"""

from __future__ import annotations

from typing import NamedTuple

CANDIDATE = 0.45
"""Below `MIN_CONFIDENCE`: such a doubt leaves candidates, and no culprit."""


class Doubt(NamedTuple):
    """A limit of a confidence."""

    kind: str
    """Published with a verdict, so that it never changes."""
    ceiling: float
    halves: bool = False
    """It contradicts the accusation: what else speaks for it counts half."""


# Every accusation
NO_HEARTBEATS = Doubt("no_heartbeats", 0.85)
SERVES_CLIENTS = Doubt("serves_clients", CANDIDATE)
STACK_MISSING = Doubt("stack_missing", 0.85)
SEVERAL_DEATHS = Doubt("several_deaths", 0.9)

# Ranks that are elsewhere while others wait
LEADS = Doubt("leads", 1.0, halves=True)
MAY_NOT_BE_AWAITED = Doubt("may_not_be_awaited", CANDIDATE)
MAY_POLL = Doubt("may_poll", CANDIDATE)
CAME_OUT = Doubt("came_out", CANDIDATE)
ALL_GO_ON = Doubt("all_go_on", CANDIDATE)
MAY_BE_MOVING = Doubt("may_be_moving", 0.85)
GAVE_UP = Doubt("gave_up", 0.8)
NO_RANK_WAITS = Doubt("no_rank_waits", 0.55)
BY_THREADS = Doubt("by_threads", 0.85)
PRESUMED = Doubt("presumed", 0.75)
SCATTERED = Doubt("scattered", 0.6)
MANY_ELSEWHERE = Doubt("many_elsewhere", CANDIDATE)
COARSE = Doubt("coarse", 0.8)
PAIR = Doubt("pair", 0.6)
NO_ANSWER = Doubt("no_answer", CANDIDATE)
FED_BY_PROCESS = Doubt("fed_by_process", 0.8)
GIL_INSIDE_CALL = Doubt("gil_inside_call", 0.6)

# Set-up
LATECOMER = Doubt("latecomer", 0.7)
MOST_LATECOMERS = Doubt("most_latecomers", CANDIDATE)
MOST_OUTSIDE = Doubt("most_outside", CANDIDATE)
MOST_MISSING = Doubt("most_missing", CANDIDATE)

# Ends, nodes and held ranks
CONNECTION_LOST = Doubt("connection_lost", 0.6)
CONNECTION_LOST_AMONG_OTHERS = Doubt("connection_lost_among_others", CANDIDATE)
FIRST_OF_SAME = Doubt("first_of_same", 0.8)
FIRST_OF_VICTIMS = Doubt("first_of_victims", 0.55)
ODD_TEXT = Doubt("odd_text", 0.55)
MAY_HAVE_GIVEN_UP = Doubt("may_have_given_up", 0.6)
HAD_NOT_GIVEN_UP = Doubt("had_not_given_up", CANDIDATE)
LEFT_AFTERWARDS = Doubt("left_afterwards", 0.75)
MOST_LEFT = Doubt("most_left", CANDIDATE)
AGENT_ALONE = Doubt("agent_alone", 0.92)
NODE_LEFT_EARLIER = Doubt("node_left_earlier", CANDIDATE)
OTHERS_ELSEWHERE = Doubt("others_elsewhere", CANDIDATE)
ALL_BLOCKED = Doubt("all_blocked", CANDIDATE)
GPU_ERROR_EARLIER = Doubt("gpu_error_earlier", 0.75)
GPUS_UNKNOWN = Doubt("gpus_unknown", 0.6)
GPU_FROZEN = Doubt("gpu_frozen", 0.6)
GPU_ERROR_BESIDE = Doubt("gpu_error_beside", CANDIDATE)

# Ranks in different calls
LINES_ALONE = Doubt("lines_alone", 0.75)
LINES_MAY_FIT = Doubt("lines_may_fit", CANDIDATE)
CONDITION_UNKNOWN = Doubt("condition_unknown", 0.8)
OTHER_SENDS = Doubt("other_sends", 0.75)
OTHER_MESSAGES = Doubt("other_messages", CANDIDATE)
MAY_HAVE_LEFT_OUT = Doubt("may_have_left_out", 0.85)
EVEN_SPLIT = Doubt("even_split", CANDIDATE)
LOGS_MISSING = Doubt("logs_missing", CANDIDATE)
BOTH_AHEAD = Doubt("both_ahead", CANDIDATE)
CYCLE_UNPROVEN = Doubt("cycle_unproven", CANDIDATE)
MIXED_CYCLE = Doubt("mixed_cycle", 0.55)
ONE_OF_CYCLE = Doubt("one_of_cycle", 0.55)

# Jobs in which every rank waits
SAME_LINE = Doubt("same_line", 0.6)
RANK_DIFFERS = Doubt("rank_differs", CANDIDATE, halves=True)
MAY_BE_UNRELATED = Doubt("may_be_unrelated", CANDIDATE)
SOME_LEFT = Doubt("some_left", 0.7)
CALL_QUEUED = Doubt("call_queued", CANDIDATE)
LOG_HAS_HOLE = Doubt("log_has_hole", CANDIDATE)
CALLED_LESS = Doubt("called_less", CANDIDATE)
ALSO_HELD_UP = Doubt("also_held_up", CANDIDATE)
LINK_ERRORS_ALONE = Doubt("link_errors_alone", 0.7)
LINK_MAY_BE_UNUSED = Doubt("link_may_be_unused", 0.85)
COUNTS_APART = Doubt("counts_apart", CANDIDATE)
ROOTS_MAY_DIFFER = Doubt("roots_may_differ", CANDIDATE)

# Slow jobs
ONE_OF_TWO = Doubt("one_of_two", 0.7)
UNCOUNTED = Doubt("uncounted", CANDIDATE)
