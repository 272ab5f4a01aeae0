"""A rank is not inside the collective that the others wait in, and no finer reason is seen.

Also the place for ranks that did not answer while every other one waits, and for those that had
not given up when all others had: any of them may be the one, so they are candidates, never a
confident answer.
"""

from __future__ import annotations

from watchtower.diagnosis.accusation import CANDIDATE, MAX_QUOTED, Accusation, Doubt, Reason, Tier
from watchtower.diagnosis.advice import DUMP_THREADS, READ_CODE, WAIT_PLACE
from watchtower.diagnosis.bystanders import write_child
from watchtower.diagnosis.deaths import write_ending
from watchtower.diagnosis.domain import ELSEWHERE, IN_OWN_CODE, BlockedRank, Line
from watchtower.diagnosis.elsewhere import accuse_elsewhere, doubt_many
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Place, Position
from watchtower.diagnosis.reasons import GAVE_UP_WEIGHT, child_reasons, movement_reasons
from watchtower.diagnosis.words import write_place_of_wait
from watchtower.evidence.gpus import WORKING
from watchtower.wire.verdict import Cause, Domain
from watchtower.writing.text import join_sentences


def _runs_own_kernel(rank: BlockedRank) -> bool:
    use = rank.job.picture.gpu_use(rank.position.rank)
    return rank.position.waits_for_device and use is not None and use.pattern in WORKING


WHOM = (
    *ELSEWHERE,
    Line(
        Domain.USER_CODE, "the rank waits for its device, and its GPU still works", _runs_own_kernel
    ),
    IN_OWN_CODE,
)

COARSE = Doubt("coarse", 0.8, "the stack of {suspects} fits none of the known causes")
NO_STACK = Doubt("no_stack", 0.8, "no stack shows where {suspects} is")
PAIR = Doubt(
    "pair", 0.6, "there are only two ranks, and either may be in a call that the other never makes"
)
NO_ANSWER = Doubt(
    "no_answer", CANDIDATE, "{suspects} may wait like the others: the samples do not show it"
)
SILENCE = Doubt(
    "silence",
    0.8,
    "only its silence shows that {suspects} has not come to the call: its output may be cut off",
)
HAD_NOT_GIVEN_UP = Doubt(
    "had_not_given_up",
    CANDIDATE,
    "only that {suspects} ended later, and in another way, separates it from the others",
)

RECORD_CALLS = (
    "if rank {rank} has ended, start the job again with `TORCH_FR_BUFFER_SIZE=2000`: a dump of "
    "each rank's flight recorder shows the calls that it made"
)
DUMP_RANK = "check rank {rank} on {node}: `py-spy dump --pid {pid}`"


def find(picture: Picture) -> Accusation | None:
    """Accuse every rank that answered from outside, else name those that did not answer."""
    sinks = picture.sinks
    if not sinks:
        return _name_candidates(picture)
    known = len(picture.live) + len(picture.gave_up)
    return accuse_elsewhere(
        picture,
        sinks,
        Cause.BEHIND_COLLECTIVE,
        reasons=[
            *movement_reasons([item for item in sinks if not item.of_files]),
            *child_reasons(picture, sinks[:MAX_QUOTED]),
        ],
        why_not=[
            PAIR if known < 3 else COARSE if any(item.stack for item in sinks) else NO_STACK,
            *doubt_many(picture, sinks),
            *([SILENCE] if any(item.is_silent for item in sinks) else []),
        ],
        advice=(DUMP_RANK, *((RECORD_CALLS,) if sinks[0].is_silent else ()))
        if sinks[0].of_files and sinks[0].stack is None
        else (*((WAIT_PLACE,) if sinks[0].wait_place else ()), READ_CODE, DUMP_THREADS),
        besides=lambda position: _write_activity(picture, position),
    )


def _write_activity(picture: Picture, position: Position) -> str:
    if position.place is Place.UNSEEN:
        return ""
    moves = "it uses CPU or moves data" if position.moving else write_place_of_wait(position)
    return join_sentences(moves, write_child(picture, position))


def _name_candidates(picture: Picture) -> Accusation | None:
    if picture.first_hand.awaited:
        return _name_awaited(picture)
    silent = picture.unseen
    if not picture.waiting_without(item.rank for item in silent):
        return None
    return accuse_elsewhere(
        picture,
        silent,
        Cause.BEHIND_COLLECTIVE,
        why_not=[NO_ANSWER],
        advice=(DUMP_RANK,),
        besides=lambda position: _write_activity(picture, position),
    )


def _name_awaited(picture: Picture) -> Accusation:
    """Name the ranks that all others may have waited for until they gave up. No rank is left."""
    found = picture.first_hand
    left, first = tuple(sorted(death.rank for death in found.deaths)), found.deaths[0]
    text = f"rank {first.rank} {write_ending(first)}"
    return Accusation(
        cause=Cause.BEHIND_COLLECTIVE,
        tier=Tier.STACKS,
        suspects=tuple(death.position for death in found.awaited),
        reasons=(Reason("ending", GAVE_UP_WEIGHT, left, text),),
        doubts=(HAD_NOT_GIVEN_UP,),
        advice=(READ_CODE,),
    )
