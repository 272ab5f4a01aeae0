"""How the accusations of each cause read: the summary, and why each suspect is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from watchtower.diagnosis.accusation import Accusation, ReasonKind
from watchtower.diagnosis.bystanders import find_stuck_worker
from watchtower.diagnosis.picture import Picture
from watchtower.diagnosis.position import Place, Position
from watchtower.diagnosis.subjects import (
    Deaths,
    FaultyGpus,
    GilOwners,
    LingeringRanks,
    LostNodes,
    MissingSends,
    NeverSeen,
    Ranks,
    SameCall,
    StuckDriver,
    expect,
)
from watchtower.diagnosis.waits.callsites import ProgramOrder
from watchtower.diagnosis.waits.graph import End
from watchtower.diagnosis.waits.mismatches import Split
from watchtower.diagnosis.waits.points import name_point
from watchtower.diagnosis.writer.advice import COMPARE_ROOTS
from watchtower.diagnosis.writer.endings import summarise_ended, write_ending, write_lingering
from watchtower.diagnosis.writer.evidence import write_evidence
from watchtower.diagnosis.writer.hardware import (
    write_alike,
    write_ecc_errors,
    write_gpu_error,
    write_stuck_driver,
)
from watchtower.diagnosis.writer.proofs import write_gone_on, write_proof
from watchtower.diagnosis.writer.words import (
    MAX_NAMED,
    describe_worker,
    name_rank,
    name_some,
    name_wait,
    name_waits,
    write_at,
    write_child,
    write_cycle,
    write_held,
    write_likewise,
    write_loop,
    write_others,
    write_owner,
    write_pace,
    write_place,
    write_place_of_wait,
    write_thread,
    write_unanswered,
    write_wait,
)
from watchtower.wire.dumps import NativeKind
from watchtower.wire.verdict import Cause
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import (
    clean,
    count_ranks,
    format_duration,
    join_sentences,
    join_words,
)

MAX_NODES = 4
"""Nodes named in a summary; the others are counted."""

MAX_POINTS = 3
"""Wait points named in a summary."""


class Text(NamedTuple):
    """How the accusations of a cause read."""

    why: Callable[[Picture, Accusation, Position], str]
    """Completes "rank 3 (gpu-01, pid 7) ..."."""
    summary: Callable[[Picture, Accusation], str]


def _summarise(why: Callable[[Picture, Accusation, Position], str]) -> Text:
    """Make the text of causes whose summary is about the first suspect, then about the others."""

    def summary(picture: Picture, accusation: Accusation) -> str:
        suspects = accusation.suspects
        return join_sentences(
            f"{name_rank(suspects[0])} {why(picture, accusation, suspects[0])}",
            write_likewise(suspects),
            write_others(picture, suspects),
        )

    return Text(why, summary)


def _why_elsewhere(picture: Picture, accusation: Accusation, position: Position) -> str:
    if why := write_alike(accusation.about):
        return why
    clause = _CLAUSES.get(accusation.cause)
    besides = clause(picture, accusation, position) if clause else ""
    return join_sentences(
        f"{write_place(position)}{write_wait(position)}", besides, write_thread(picture, position)
    )


def _write_loading(picture: Picture, _: Accusation, position: Position) -> str:
    worker = find_stuck_worker(picture.stacks, position)
    return f"its worker {describe_worker(worker)}" if worker else write_place_of_wait(position)


def _write_saving(picture: Picture, _: Accusation, position: Position) -> str:
    moves = "it is moving data" if position.moving else "no data moves"
    return join_sentences(moves, write_child(picture, position))


def _write_locked(picture: Picture, _: Accusation, position: Position) -> str:
    return join_sentences(write_place_of_wait(position), write_child(picture, position))


def _write_busy(_: Picture, __: Accusation, position: Position) -> str:
    native, where = position.native, ""
    if native is not None and native.kind is NativeKind.PYTHON:
        where = " in Python"
    elif native is not None and native.library:
        where = f" in {clean(native.library, 64)}"
    return f"it uses {position.evidence.movement.cpu_cores:.1f} CPU cores{where}"


def _write_behind(picture: Picture, _: Accusation, position: Position) -> str:
    if position.place is Place.UNSEEN:
        return ""
    moves = "it uses CPU or moves data" if position.moving else write_place_of_wait(position)
    return join_sentences(moves, write_child(picture, position))


def _write_gil(picture: Picture, accusation: Accusation, position: Position) -> str:
    return write_owner(picture, expect(accusation.about, GilOwners).by_rank[position.rank])


_CLAUSES = {
    Cause.INIT_STUCK: lambda _, __, position: write_unanswered(position),
    Cause.DATALOADER_STALL: _write_loading,
    Cause.CHECKPOINT_STALL: _write_saving,
    Cause.LOCK_DEADLOCK: _write_locked,
    Cause.BUSY_LOOP: _write_busy,
    Cause.BEHIND_COLLECTIVE: _write_behind,
    Cause.GIL_HELD: _write_gil,
}
"""Further text about a rank that is elsewhere, beside its place and the object it waits for."""


def _why_held(_: Picture, accusation: Accusation, position: Position) -> str:
    state = write_held(accusation.cause, accusation.suspects[0])
    return join_sentences(
        f"{state}{write_at(position)}", f"it has made no step for {format_duration(position.age_s)}"
    )


def _why_ended(_: Picture, accusation: Accusation, position: Position) -> str:
    dead = expect(accusation.about, Deaths).first
    return next(write_ending(each) for each in dead if each.position is position)


def _summarise_ended(picture: Picture, accusation: Accusation) -> str:
    return summarise_ended(picture, expect(accusation.about, Deaths), accusation.suspects)


def _why_lingering(_: Picture, accusation: Accusation, position: Position) -> str:
    found = expect(accusation.about, LingeringRanks).items
    return next(write_lingering(each) for each in found if each.position is position)


def _why_ended_or_lingering(picture: Picture, accusation: Accusation, position: Position) -> str:
    why = _why_lingering if _lingers(accusation) else _why_ended
    return why(picture, accusation, position)


def _summarise_ended_or_lingering(picture: Picture, accusation: Accusation) -> str:
    if _lingers(accusation):
        return _summarise(_why_lingering).summary(picture, accusation)
    return _summarise_ended(picture, accusation)


def _lingers(accusation: Accusation) -> bool:
    return isinstance(accusation.about, LingeringRanks)


def _why_node(_: Picture, accusation: Accusation, position: Position) -> str:
    nodes = expect(accusation.about, LostNodes).items
    lost = next(node for node in nodes if position in node.ranks)
    return f"is on a node that has not reported for {format_duration(lost.silent_for_s)}"


def _summarise_node(picture: Picture, accusation: Accusation) -> str:
    lost, suspects = expect(accusation.about, LostNodes).items, accusation.suspects
    shown = [clean(node.node, 64) for node in lost[:MAX_NODES]]
    more = len(lost) - len(shown)
    names = join_words([*shown, f"{more} more"] if more else shown)
    silent = format_duration(lost[0].silent_for_s)
    return join_sentences(
        f"{'nodes' if len(lost) > 1 else 'node'} {names} stopped reporting "
        f"{silent} ago ({name_ranks(item.rank for item in suspects)})",
        write_others(picture, suspects),
    )


def _why_stuck_driver(_: Picture, accusation: Accusation, position: Position) -> str:
    text = write_stuck_driver(expect(accusation.about, StuckDriver))
    return f"uses a GPU whose driver does not answer: {text}"


def _why_gpu_fault(_: Picture, accusation: Accusation, position: Position) -> str:
    if why := write_alike(accusation.about):
        return why
    found = expect(accusation.about, FaultyGpus).items
    return write_gpu_error(next(each for each in found if each.position is position))


def _why_never_started(*_: object) -> str:
    return "was not seen on any watched node"


def _summarise_never_started(picture: Picture, accusation: Accusation) -> str:
    seen = expect(accusation.about, NeverSeen)
    missing, in_init = seen.missing, seen.in_init
    names, waits = name_ranks(item.rank for item in missing), ""
    if in_init:
        verb = "waits" if len(in_init) == 1 else "wait"
        whom = names if len(missing) <= MAX_NAMED else "them"
        waits = f"{count_ranks(len(in_init))} {verb} for {whom} in {name_wait(in_init)}"
    return join_sentences(
        f"{names} of {picture.case.world_size} {'have' if len(missing) > 1 else 'has'} not been "
        f"seen since the first rank started {format_duration(picture.case.stalled_for_s)} ago",
        waits,
    )


def _why_split(_: Picture, accusation: Accusation, position: Position) -> str:
    split = expect(accusation.about, Split)
    others = split.many
    call, waited = (
        f"{clean(split.few_call, 120)}{write_at(position)}",
        format_duration(position.age_s),
    )
    least = "at least " if position.step is None else ""  # it may be older than the samples
    verb = "is" if len(others) == 1 else "are"
    order_needs_both = split.order is ProgramOrder.SAME_LOOP
    return join_sentences(
        f"called a collective that the others did not: {call} ({least}{waited} ago)"
        if accusation.cause is Cause.CONDITIONAL_COLLECTIVE
        else f"has been waiting in {call} for {waited}",
        "" if order_needs_both else write_loop(split.order),
        write_proof(split.proof),
        f"{name_some(others)} {verb} waiting in {clean(split.many_call, 120)}{write_at(others[0])}",
        f"both calls are {split.at}" if split.at else "",
        write_loop(split.order) if order_needs_both else "",
    )


def _summarise_split(picture: Picture, accusation: Accusation) -> str:
    first = accusation.suspects[0]
    why = _why_split(picture, accusation, first)
    return join_sentences(f"{name_rank(first)} {why}", write_likewise(accusation.suspects))


def _why_missing_send(_: Picture, accusation: Accusation, position: Position) -> str:
    sends = expect(accusation.about, MissingSends).items
    missing = {each.sender: each for each in sends}[position.rank]
    return join_sentences(
        f"has not sent message {missing.number} to rank {missing.receiver}, which waits for that "
        "message",
        f"rank {position.rank} is already past that send: {write_gone_on(missing.proofs)}",
    )


def _summarise_missing_send(picture: Picture, accusation: Accusation) -> str:
    sender, waiting = accusation.suspects[0], picture.waiting_without(accusation.ranks)
    verb = "has" if len(waiting) == 1 else "have"
    return join_sentences(
        f"{name_rank(sender)} {_why_missing_send(picture, accusation, sender)}",
        f"{count_ranks(len(waiting))} {verb} waited for {format_duration(sender.age_s)}",
    )


def _why_cycle(picture: Picture, _: Accusation, position: Position) -> str:
    own = picture.graph.points_of(position.rank) if picture.graph else ()
    return f"waits in {join_words([name_point(point) for point in own])}{write_at(position)}"


def _summarise_cycle(_: Picture, accusation: Accusation) -> str:
    cycle = expect(accusation.about, End)
    return join_sentences(
        f"{name_ranks(cycle.ranks)} have waited for each other for "
        f"{format_duration(accusation.suspects[0].age_s)}",
        *write_cycle(cycle)[:MAX_POINTS],
    )


def _summarise_symmetric(picture: Picture, accusation: Accusation) -> str:
    call = expect(accusation.about, SameCall)
    return join_sentences(
        f"all {count_ranks(len(picture.live))} have waited in {name_waits(picture.waiting)} for "
        f"{format_duration(picture.case.stalled_for_s)}",
        "no rank is behind the others: check the network between them"
        if call.points_to_network
        else "nothing measured shows a rank that is behind the others",
        COMPARE_ROOTS if call.may_differ_in_root else "",
    )


def _why_straggler(picture: Picture, accusation: Accusation, position: Position) -> str:
    why = _write_brake(picture, position)
    if any(reason.kind is ReasonKind.EVEN_COUNTS for reason in accusation.reasons):
        return f"waits for its GPU as often as the other ranks for theirs{why}"
    waits, samples = position.evidence.waits, position.evidence.samples
    if not waits:
        return f"never waited for other ranks in {samples} samples{why}"
    return f"waited for other ranks in only {waits} of {samples} samples{why}"


def _write_brake(picture: Picture, position: Position) -> str:
    """Return ", and ..." with what slows the rank down, if that is known."""
    why = ""
    if picture.slowed_gpu(position.rank):
        why = ", and its GPU works with reduced clocks"
    elif ecc := picture.ecc_errors(position.rank):
        why = f", and {write_ecc_errors(ecc)}"
    elif limit := picture.cpu_limit(position.rank):
        why = f", and {clean(limit.text, 96)}"
    return why


def _summarise_straggler(picture: Picture, accusation: Accusation) -> str:
    first = accusation.suspects[0]
    return join_sentences(
        f"{name_rank(first)} {_why_straggler(picture, accusation, first)}",
        write_likewise(accusation.suspects),
        f"the other ranks wait for {name_some(accusation.suspects)}",
        write_pace(picture),
    )


def _summarise_slow(picture: Picture, accusation: Accusation) -> str:
    slower = write_pace(picture)
    is_counted = bool(expect(accusation.about, Ranks).items)
    even = "no rank waits much less than the others" if is_counted else ""
    return join_sentences(slower, even)


def _summarise_no_rank(picture: Picture, accusation: Accusation) -> str:
    return f"no rank is to blame: {write_evidence(picture, accusation.reasons[0]).text}"


def _no_suspects(*_: object) -> str:
    return ""


ELSEWHERE = _summarise(_why_elsewhere)
_HELD = _summarise(_why_held)
NO_RANK = Text(_no_suspects, _summarise_no_rank)
_ENDED = Text(_why_ended_or_lingering, _summarise_ended_or_lingering)
_SPLIT = Text(_why_split, _summarise_split)

TEXTS = {
    Cause.OOM_KILLED: _ENDED,
    Cause.EXCEPTION: _ENDED,
    Cause.PROCESS_DIED: _ENDED,
    Cause.EXITED_EARLY: _ENDED,
    Cause.NODE_LOST: Text(_why_node, _summarise_node),
    Cause.GPU_DRIVER_STUCK: _summarise(_why_stuck_driver),
    Cause.GPU_FAULT: _summarise(_why_gpu_fault),
    Cause.PROCESS_STOPPED: _HELD,
    Cause.PROCESS_TRACED: _HELD,
    Cause.PROCESS_FROZEN: _HELD,
    Cause.UNINTERRUPTIBLE_IO: _HELD,
    Cause.NEVER_STARTED: Text(_why_never_started, _summarise_never_started),
    Cause.UNEVEN_INPUTS: _SPLIT,
    Cause.CONDITIONAL_COLLECTIVE: _SPLIT,
    Cause.MISMATCHED_COLLECTIVE: _SPLIT,
    Cause.MISSING_SEND: Text(_why_missing_send, _summarise_missing_send),
    Cause.COLLECTIVE_CYCLE: Text(_why_cycle, _summarise_cycle),
    Cause.SYMMETRIC_HANG: Text(_no_suspects, _summarise_symmetric),
    Cause.STRAGGLER: Text(_why_straggler, _summarise_straggler),
    Cause.JOB_SLOW: Text(_no_suspects, _summarise_slow),
}
"""For every other cause, suspects are elsewhere while the others wait; or no rank is to blame, and
the first reason shows why."""
