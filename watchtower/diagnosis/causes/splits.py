"""Ranks are in another call than the rest of their group.

Uneven inputs: they wait on the other side of the end of a loop. A conditional collective: the
others never call it. A mismatch: another operation, order, size or element type as the same call.
"""

from __future__ import annotations

from watchtower.diagnosis.accusation import (
    CANDIDATE,
    MAX_QUOTED,
    STACK_MISSING,
    Accusation,
    Doubt,
    Reason,
    Tier,
)
from watchtower.diagnosis.bystanders import find_late_thread, write_late_thread
from watchtower.diagnosis.domain import Line
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Position
from watchtower.diagnosis.reasons import CALLED_WEIGHT, LOG_WEIGHT, ranks_of, stack_reason
from watchtower.diagnosis.waits.callsites import ProgramOrder, is_further_down
from watchtower.diagnosis.waits.divergent_rank import (
    RECEIVE,
    SEND,
    CountAtPoint,
    CountBeside,
    CountDifference,
    CountsBesideAll,
)
from watchtower.diagnosis.waits.graph import describe_group
from watchtower.diagnosis.waits.mismatches import Ground, Proof, Split
from watchtower.diagnosis.waits.odd_rank import Sign
from watchtower.diagnosis.words import name_rank, name_some, write_at, write_likewise
from watchtower.wire.verdict import Cause, Domain
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import clean, format_duration, join_sentences, join_words

WHOM = (Line(Domain.USER_CODE),)
WHOM_OF_UNEVEN_INPUTS = (Line(Domain.DATA),)

LINE_WEIGHT = LOOP_WEIGHT = ODD_WEIGHT = 0.6
"""One side against all the others, or a count that is one off; either fits one fault only."""

LINES_ALONE = Doubt(
    "lines_alone", 0.75, "only source lines show which calls differ: there are no collective logs"
)
LINES_MAY_FIT = Doubt(
    "lines_may_fit", CANDIDATE, "without collective logs, calls at these lines may belong together"
)
CONDITION_UNKNOWN = Doubt(
    "condition_unknown", 0.8, "the sources do not show whether a loop ended or a condition differs"
)
MAY_HAVE_LEFT_OUT = Doubt(
    "may_have_left_out",
    0.85,
    "{suspects} may instead have left out an earlier call and come here before the others",
)
EVEN_SPLIT = Doubt("even_split", CANDIDATE, "no majority of the ranks makes the same call")
LOGS_MISSING = Doubt(
    "logs_missing", CANDIDATE, "some members of these groups have no collective log"
)

COUNT_BATCHES = (
    "count the batches of each rank: shards may differ in size, a filter may drop samples, or an "
    "exception may skip a batch"
)
MAKE_STEPS_EVEN = (
    "make all ranks run the same number of steps before {place}: use drop_last, padding, or "
    "torch's Join"
)
FIND_EXTRA_CALL = (
    "find why rank {rank} makes the call at {place} and the others do not: its loop ended earlier, "
    "or only this rank runs that code (a condition, a callback or a hook)"
)
READ_CONDITION = (
    "read the condition around {place}: it was true on rank {rank} and false on the others"
)
DECIDE_TOGETHER = (
    "make all ranks take that decision together (all_reduce of a flag), so that all of them or "
    "none call the collective"
)
COMPARE_CALLS = (
    "compare the code that leads to {place} with the other ranks: order of calls, tensor sizes and "
    "dtypes must be equal"
)
CHECK_CALLS = "set TORCH_DISTRIBUTED_DEBUG=DETAIL to check every call; this slows the job down"

FIND_LATE_THREAD = (
    "find what the thread {late_thread} of rank {rank} on {node} waits for: on the other ranks "
    "this thread made the call"
)
GIVE_OWN_GROUP = (
    "give that thread a process group of its own (process_group=dist.new_group()): calls of two "
    "threads in one group have no fixed order"
)

ADVICE = {
    Cause.UNEVEN_INPUTS: (COUNT_BATCHES, MAKE_STEPS_EVEN),
    Cause.CONDITIONAL_COLLECTIVE: (READ_CONDITION, DECIDE_TOGETHER),
    Cause.MISMATCHED_COLLECTIVE: (COMPARE_CALLS, CHECK_CALLS),
}

NO_LOOP_SEEN = (FIND_EXTRA_CALL, COUNT_BATCHES)
"""Advice for uneven inputs where no loop shows it. The source of a framework's own loop is not
read: one rank may as well make a call there that the others never make."""

_LOOPS = {
    ProgramOrder.LEFT_LOOP: "it has left the loop that the others are in",
    ProgramOrder.IN_LOOP: "it is still in a loop that the others have left",
    ProgramOrder.FEWER_STEPS: "it has made fewer steps than the others and is behind the loop",
    ProgramOrder.SAME_LOOP: "both lines are in the same loop",
}
"""Orders in which loops show which rank it is."""


def find_split(cause: Cause, picture: Picture) -> Accusation | None:
    """Accuse the few of the split, if this is what it means; of two ranks either may be wrong."""
    split = picture.split
    if split is None or split.cause is not cause:
        return None
    few, named = ranks_of(split.few), name_ranks(ranks_of(split.few))
    operation = split.many_call.partition(" ")[0]
    late = find_late_thread(picture, split.few[0], split.many[0], operation)
    by_logs, calls = split.ground is Ground.COLLECTIVE_LOGS, _write_calls(split)
    if by_logs:
        weight = LOG_WEIGHT if split.certain else CALLED_WEIGHT
        reasons = [Reason("records", weight, few, calls)]
    else:
        reasons = [Reason("peers", LINE_WEIGHT, few, calls)]
    if split.order in _LOOPS:
        reasons.append(Reason("source", LOOP_WEIGHT, few, f"{named}: {_LOOPS[split.order]}"))
    if split.proof is not None:
        reasons.append(Reason("order", ODD_WEIGHT, few, f"{named}: {_write_proof(split.proof)}"))
    for item in (*split.few[:MAX_QUOTED], split.many[0]):
        reasons += stack_reason(item)

    first = split.few[0]

    def why(position: Position) -> str:
        thread = write_late_thread(late) if late and position is first else ""
        return join_sentences(_write_why(split, position), thread)

    return Accusation(
        cause=cause,
        tier=Tier.MISMATCH if by_logs else Tier.STACKS,
        suspects=split.few,
        reasons=tuple(reasons),
        doubts=_find_doubts(picture, split),
        why=why,
        summary=join_sentences(f"{name_rank(first)} {why(first)}", write_likewise(split.few)),
        advice=(FIND_LATE_THREAD, GIVE_OWN_GROUP) if late else _choose_advice(split),
        names={"late_thread": clean(late.thread.name, 64)} if late else {},
    )


def _choose_advice(split: Split) -> tuple[str, ...]:
    """Return what to do. Equal numbers of steps help only where a loop shows which rank left it."""
    if split.cause is Cause.UNEVEN_INPUTS and split.order not in _LOOPS:
        return NO_LOOP_SEEN
    return ADVICE[split.cause]


def _find_doubts(picture: Picture, split: Split) -> tuple[Doubt, ...]:
    if split.is_even or split.is_partial:
        return (EVEN_SPLIT if split.is_even else LOGS_MISSING,)
    missing = (STACK_MISSING,) if picture.unseen else ()
    if split.ground is Ground.STACKS:
        return (*missing, LINES_ALONE if _is_plain(split) else LINES_MAY_FIT)
    if split.cause is Cause.CONDITIONAL_COLLECTIVE and _is_ahead_in_loop(split):
        return (*missing, MAY_HAVE_LEFT_OUT)
    is_known = split.cause is Cause.MISMATCHED_COLLECTIVE or split.order in _LOOPS
    return missing if is_known else (*missing, CONDITION_UNKNOWN)


def _is_ahead_in_loop(split: Split) -> bool:
    """Return whether the few are further down in the loop than the others, who would come there
    next."""
    is_in_loop = split.order is ProgramOrder.SAME_LOOP
    return is_in_loop and is_further_down(split.few[0], split.many[0])


def _is_plain(split: Split) -> bool:
    """Return whether lines alone may accuse.

    Ranks in two data calls of one loop may as well be victims in a sub-group of their own, and so
    may several who have met in one.
    """
    if split.order in (ProgramOrder.LEFT_LOOP, ProgramOrder.SAME_LINE):
        return True
    meets = split.order is ProgramOrder.IN_LOOP or split.is_meeting
    return meets and len(split.few) == 1


def _write_calls(split: Split) -> str:
    few, many = name_ranks(ranks_of(split.few)), name_ranks(ranks_of(split.many))
    at = f"{split.at}: " if split.at else ""
    calls = clean(split.many_call, 120), clean(split.few_call, 120)
    return f"{at}{many} called {calls[0]}; {few} called {calls[1]}"


def _write_why(split: Split, position: Position) -> str:
    others = split.many
    call, waited = (
        f"{clean(split.few_call, 120)}{write_at(position)}",
        format_duration(position.age_s),
    )
    least = "at least " if position.step is None else ""  # it may be older than the samples
    verb = "is" if len(others) == 1 else "are"
    loop = _LOOPS.get(split.order, "")
    order_needs_both = split.order is ProgramOrder.SAME_LOOP
    return join_sentences(
        f"called a collective that the others did not: {call} ({least}{waited} ago)"
        if split.cause is Cause.CONDITIONAL_COLLECTIVE
        else f"has been waiting in {call} for {waited}",
        "" if order_needs_both else loop,
        _write_proof(split.proof),
        f"{name_some(others)} {verb} waiting in {clean(split.many_call, 120)}{write_at(others[0])}",
        f"both calls are {split.at}" if split.at else "",
        loop if order_needs_both else "",
    )


_SIGNS = {
    Sign.BREAKS_CYCLE: "the other ranks wait in a cycle only because of this rank",
    Sign.OTHER_GROUPS: "the other groups of this kind made the same call as the other ranks",
}


def _write_proof(proof: Proof | None) -> str:
    """Return a clause about the odd rank: "it has made one send more than rank 3, ..."."""
    if proof is None:
        return ""
    if isinstance(proof, Sign):
        return _SIGNS[proof]
    if isinstance(proof, CountAtPoint):
        return _write_at_point(proof)
    if isinstance(proof, CountBeside):
        return _write_beside(proof)
    return _write_beside_all(proof)


def _write_at_point(proof: CountAtPoint) -> str:
    point = proof.point
    assert point.group is not None
    return (
        f"it has made {proof.usual + proof.by} calls in its groups of {proof.role[1]} ranks; the "
        f"others made {proof.usual} before call {point.number} of the group of "
        f"{len(point.group.members)} ranks"
    )


def _write_beside(proof: CountBeside) -> str:
    is_message = proof.role[0] in (SEND, RECEIVE)
    what = proof.role[0] if is_message else f"call in its groups of {proof.role[1]} ranks"
    more, fewer = ("more", "fewer") if proof.by > 0 else ("fewer", "more")
    return f"it has made one {what} {more} than rank {proof.other}, but {fewer} of the other calls"


def _write_beside_all(proof: CountsBesideAll) -> str:
    more = [_count_calls(each, "more") for each in proof.differing if each.by > 0]
    fewer = [_count_calls(each, "fewer") for each in proof.differing if each.by < 0]
    return (
        f"compared with rank {proof.nearest} in its groups, it has made {join_words(more)}, but "
        f"{join_words(fewer)}; no other rank differs both ways"
    )


def _count_calls(each: CountDifference, how: str) -> str:
    count = abs(each.by)
    where = describe_group(each.group) if each.group else f"its groups of {each.role[1]} ranks"
    return f"{count} {'call' if count == 1 else 'calls'} {how} in {where}"
