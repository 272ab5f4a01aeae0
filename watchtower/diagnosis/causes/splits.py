"""Ranks are in another call than the rest of their group.

Uneven inputs: they wait on the other side of the end of a loop. A conditional collective: the
others never call it. A mismatch: another operation, order, size or element type as the same call.
"""

from __future__ import annotations

from watchtower.diagnosis import doubts
from watchtower.diagnosis.accusation import MAX_QUOTED, Accusation, Reason, ReasonKind, Tier
from watchtower.diagnosis.doubts import Doubt
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.reasons import CALLED_WEIGHT, LOG_WEIGHT, ranks_of, stack_reason
from watchtower.diagnosis.waits.callsites import ProgramOrder, is_further_down
from watchtower.diagnosis.waits.mismatches import Ground, Split
from watchtower.wire.verdict import Cause

LINE_WEIGHT = LOOP_WEIGHT = ODD_WEIGHT = 0.6
"""One side against all the others, or a count that is one off; either fits one fault only."""

ADVICE = {
    Cause.UNEVEN_INPUTS: ("count_batches", "make_steps_even"),
    Cause.CONDITIONAL_COLLECTIVE: ("read_condition", "decide_together"),
    Cause.MISMATCHED_COLLECTIVE: ("compare_calls", "check_calls"),
}

NO_LOOP_SEEN = ("find_extra_call", "count_batches")
"""Advice for uneven inputs where no loop shows it. The source of a framework's own loop is not
read: one rank may as well make a call there that the others never make."""

LOOP_ORDERS = (
    ProgramOrder.LEFT_LOOP,
    ProgramOrder.IN_LOOP,
    ProgramOrder.SAME_LOOP,
    ProgramOrder.FEWER_STEPS,
)
"""Orders in which loops show which rank it is."""


def find_split(cause: Cause, picture: Picture) -> Accusation | None:
    """Accuse the few of the split, if this is what it means; of two ranks either may be wrong."""
    split = picture.split
    if split is None or split.cause is not cause:
        return None
    few, by_logs = ranks_of(split.few), split.ground is Ground.COLLECTIVE_LOGS
    if by_logs:
        weight = LOG_WEIGHT if split.certain else CALLED_WEIGHT
        reasons = [Reason(ReasonKind.OTHER_CALL, weight, few, split)]
    else:
        reasons = [Reason(ReasonKind.OTHER_LINE, LINE_WEIGHT, few, split)]
    if split.order in LOOP_ORDERS:
        reasons.append(Reason(ReasonKind.LOOP, LOOP_WEIGHT, few, split))
    if split.proof is not None:
        reasons.append(Reason(ReasonKind.ODD, ODD_WEIGHT, few, split))
    for item in (*split.few[:MAX_QUOTED], split.many[0]):
        reasons += stack_reason(item)
    return Accusation(
        cause=cause,
        tier=Tier.MISMATCH if by_logs else Tier.STACKS,
        suspects=split.few,
        reasons=tuple(reasons),
        doubts=_find_doubts(picture, split),
        advice=_choose_advice(split),
        about=split,
    )


def _choose_advice(split: Split) -> tuple[str, ...]:
    """Return what to do. Equal numbers of steps help only where a loop shows which rank left it."""
    if split.cause is Cause.UNEVEN_INPUTS and split.order not in LOOP_ORDERS:
        return NO_LOOP_SEEN
    return ADVICE[split.cause]


def _find_doubts(picture: Picture, split: Split) -> tuple[Doubt, ...]:
    if split.is_even or split.is_partial:
        return (doubts.EVEN_SPLIT if split.is_even else doubts.LOGS_MISSING,)
    missing = (doubts.STACK_MISSING,) if picture.unseen else ()
    if split.ground is Ground.STACKS:
        return (*missing, doubts.LINES_ALONE if _is_plain(split) else doubts.LINES_MAY_FIT)
    if split.cause is Cause.CONDITIONAL_COLLECTIVE and _is_ahead_in_loop(split):
        return (*missing, doubts.MAY_HAVE_LEFT_OUT)
    is_known = split.cause is Cause.MISMATCHED_COLLECTIVE or split.order in LOOP_ORDERS
    return missing if is_known else (*missing, doubts.CONDITION_UNKNOWN)


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
