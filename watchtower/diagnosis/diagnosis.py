"""Decides which rank hung the job, where and why, from one immutable case.

Asks every cause, takes the best accusation by tier and confidence, and adds the runners-up and what
evidence was missing. Below `MIN_CONFIDENCE` the answer is `unknown` with ranked alternatives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import replace
from math import prod

from watchtower.diagnosis.accusation import CANDIDATE, MIN_CONFIDENCE, Accusation, Doubt, Tier
from watchtower.diagnosis.causes import CAUSES, SLOW_CAUSES, Entry, entry_of
from watchtower.diagnosis.causes.straggler import find_slow_job
from watchtower.diagnosis.diagnosed import Diagnosis
from watchtower.diagnosis.domain import find_domain, find_shared_cause
from watchtower.diagnosis.gaps import find_gaps, measure_coverage
from watchtower.diagnosis.known_bugs import (
    advise_about_bugs,
    find_known_bugs,
    show_known_bugs,
)
from watchtower.diagnosis.nothing_found import (
    add_event_step,
    advise_by_hand,
    explain_without_fault,
    prefer_events,
    show_ranks,
    summarise_unknown,
)
from watchtower.diagnosis.observed import (
    show_bad_losses,
    show_observations,
    show_written,
)
from watchtower.diagnosis.picture import Picture, take_picture
from watchtower.diagnosis.position import Place, Position
from watchtower.diagnosis.waits.collective_logs import find_own_timeout
from watchtower.diagnosis.words import write_waiting
from watchtower.diagnosis.writer import (
    NotWrittenError,
    Written,
    write_accusation,
    write_doubts,
    write_together,
)
from watchtower.evidence.case import Case
from watchtower.evidence.frames import FrameClass
from watchtower.evidence.gpus import WORKING
from watchtower.evidence.kernel import PROCESSES, STORAGE, classify_wait
from watchtower.wire.verdict import Alternative, Cause
from watchtower.writing.ranksets import format_ranks

MAX_ALTERNATIVES = 4
MAX_EVIDENCE = 24
"""Enough to check a verdict by; everything else is in the case itself."""

NO_HEARTBEATS = Doubt(
    "no_heartbeats",
    0.85,
    "no rank has heartbeats, so only stack samples show that the job has stopped",
)
SERVES_CLIENTS = Doubt(
    "serves_clients", CANDIDATE, "{suspects} waits for clients, and the job may have nothing to do"
)


def diagnose(case: Case, causes: Sequence[Entry] | None = None) -> Diagnosis:
    """Name the suspects of a case, or say that it does not show them."""
    return diagnose_picture(take_picture(case), causes)


def diagnose_picture(picture: Picture, causes: Sequence[Entry] | None = None) -> Diagnosis:
    """Name the suspects of a case whose picture was taken."""
    case = picture.case
    is_slow = case.slowdown > 1
    if causes is None:
        causes = SLOW_CAUSES if is_slow else CAUSES
    found, broken = _ask(picture, causes)
    if _lacks_heartbeats(case):
        found = [_doubt_without_heartbeats(each) for each in found]
    if is_slow and not any(each.confidence >= MIN_CONFIDENCE for each in found):
        found.append(find_slow_job(picture))
    while True:
        try:
            diagnosis = _judge(picture, found)
        except NotWrittenError as error:
            broken.append(_describe_broken(error.cause, error))
            found = [each for each in found if each.cause is not error.cause]
        else:
            return replace(
                diagnosis,
                missing_evidence=(*broken, *find_gaps(picture)),
                coverage=measure_coverage(picture),
            )


def _lacks_heartbeats(case: Case) -> bool:
    """Return whether only samples show that the ranks have stopped: no rank has heartbeats, and no
    file shows that a rank gave up waiting."""
    has_timed_out = case.of_files and case.stalled_for_s > 0
    has_beats = any(item.beat is not None for item in case.ranks)
    return bool(case.ranks) and not has_beats and not has_timed_out


def _doubt_without_heartbeats(accusation: Accusation) -> Accusation:
    """Without steps it is not known that a job hangs. One that serves clients may have none now."""
    serves = any(item.serves_clients for item in accusation.suspects)
    more = (NO_HEARTBEATS, *((SERVES_CLIENTS,) if serves else ()))
    return replace(accusation, doubts=(*accusation.doubts, *more))


def _judge(picture: Picture, found: Sequence[Accusation]) -> Diagnosis:
    """Choose among the accusations. Raises `NotWrittenError` if a chosen one has no sentences."""
    ranked = sorted(found, key=lambda each: (each.tier, -each.confidence))
    sure = [each for each in ranked if each.confidence >= MIN_CONFIDENCE]
    return _accuse(picture, ranked, sure) if sure else _diagnose_unknown(picture, ranked)


def _describe_broken(cause: Cause, error: BaseException) -> str:
    return (
        f"cause {cause.value} failed ({type(error.__cause__ or error).__name__}) and was left out"
    )


def _ask(picture: Picture, causes: Sequence[Entry]) -> tuple[list[Accusation], list[str]]:
    found: list[Accusation] = []
    broken: list[str] = []
    for each in causes:
        try:
            accusation = each.find(picture)
        except Exception as error:
            broken.append(_describe_broken(each.cause, error))
            continue
        if accusation is not None:
            found.append(accusation)
    return found, broken


def _accuse(
    picture: Picture, ranked: Sequence[Accusation], sure: Sequence[Accusation]
) -> Diagnosis:
    chosen = _join_faults(sure)
    accused = [item for each in chosen for item in each.suspects]
    written = write_together(picture, chosen)
    # Each fault holds up the job by itself. One that does not move will not end by itself.
    still = (s for each in chosen if (s := each.suspects) and not _are_moving(picture, s))
    made = _make_diagnosis(picture, chosen[0].cause, written, accused, next(still, accused))
    is_shown_by_gpus = chosen[0].is_shown_by_gpus
    return replace(
        made,
        domain=find_domain(
            picture, entry_of(chosen[0].cause).whom, chosen[0].suspects or chosen[0].witnesses
        ),
        confidence=chosen[0].confidence,
        is_shown_by_gpus=is_shown_by_gpus,
        # A host that goes from one wait for its device to the next works, too.
        suspects_moving=made.suspects_moving or (is_shown_by_gpus and not made.suspects_rest),
        doubts=write_doubts(picture, chosen[0]),
        alternatives=_list_alternatives(ranked, chosen),
    )


def _join_faults(sure: Sequence[Accusation]) -> list[Accusation]:
    """Join independent faults of one tier: other ranks, each with a reason of its own.

    The cause is the strongest one's; each suspect keeps its own.
    """
    best = sure[0]
    chosen, accused = [best], set(best.ranks)
    for accusation in sure[1:]:
        other = accusation
        if entry_of(other.cause).is_general:
            # Without collective logs it is not known whether the others wait for them.
            if other.tier is not Tier.WAIT_FOR:
                continue
            other = _without(accused, other)
        if other.tier is best.tier and other.suspects and not accused.intersection(other.ranks):
            chosen.append(other)
            accused.update(other.ranks)
    return chosen


def _without(accused: Set[int], accusation: Accusation) -> Accusation:
    """Leave out those for whom a finer reason was found."""
    suspects = tuple(item for item in accusation.suspects if item.rank not in accused)
    kept = {(item.rank,) for item in suspects}
    reasons = tuple(reason for reason in accusation.reasons if reason.ranks in kept)
    return replace(accusation, suspects=suspects, reasons=reasons, advice=())


def _diagnose_unknown(picture: Picture, ranked: Sequence[Accusation]) -> Diagnosis:
    # Of equals, one that names ranks says more than one that names none.
    likeliest = [
        replace(each, suspects=prefer_events(picture, each.suspects))
        for each in sorted(ranked, key=lambda each: (-each.confidence, not each.suspects))
    ]
    explained = explain_without_fault(picture)
    candidates = likeliest[0].suspects if likeliest else ()
    # While all wait, what a candidate does beside its wait does not let the job go on.
    timed_by = () if picture.separations else candidates
    alternatives = () if explained else _list_alternatives(likeliest, ())
    written = Written((), explained or summarise_unknown(picture, alternatives), (), ())
    if not explained:
        first = write_accusation(picture, likeliest[0]) if likeliest else None
        steps = (first and first.next_steps) or advise_by_hand(picture)
        written = replace(
            written,
            evidence=first.evidence if first else show_ranks(picture),
            next_steps=add_event_step(picture, candidates, steps),
        )
    return replace(
        _make_diagnosis(picture, Cause.UNKNOWN, written, candidates, timed_by),
        domain=find_domain(picture, entry_of(Cause.UNKNOWN).whom, candidates),
        doubts=write_doubts(picture, likeliest[0]) if likeliest and not explained else (),
        alternatives=alternatives,
    )


def _make_diagnosis(
    picture: Picture,
    cause: Cause,
    written: Written,
    accused: Sequence[Position],
    timed_by: Sequence[Position],
) -> Diagnosis:
    """Return what is known of the accused, or of the candidates, and of those that wait.

    `timed_by`: those of them whose movement decides how long the stall may last.
    """
    waiting = picture.waiting_without(item.rank for item in accused)
    is_still = bool(written.suspects) and all(item.is_motionless for item in accused)
    nodes = (each.node for each in written.suspects if entry_of(each.cause).of_node)
    shown = (
        *show_bad_losses(picture),
        *show_observations(picture, accused, written.quoted),
        *show_written(picture, accused),
    )
    bugs = find_known_bugs(picture, accused if written.suspects else ())
    evidence = dict.fromkeys([*written.evidence, *shown, *show_known_bugs(bugs)])
    next_steps = (*written.next_steps, *advise_about_bugs(bugs))
    return Diagnosis(
        cause=cause,
        confidence=0.0,
        suspects=written.suspects,
        summary=written.summary,
        waiting=format_ranks(item.rank for item in waiting),
        step=picture.step,
        stalled_for_s=picture.case.stalled_for_s,
        evidence=tuple(sorted(evidence, key=lambda item: -item.weight)[:MAX_EVIDENCE]),
        next_steps=tuple(step.text for step in next_steps),
        lasting_steps=tuple(step.text for step in next_steps if step.lasts),
        suspects_moving=_are_moving(picture, timed_by),
        suspects_work=bool(timed_by) and all(item.works for item in timed_by),
        suspects_transfer=any(item.transfers for item in timed_by),
        suspects_rest=bool(timed_by) and all(map(_rests, timed_by)),
        has_given_up=picture.case.of_files and bool(written.suspects),
        peers_waiting=any(_is_waiting(item, suspect_is_still=is_still) for item in waiting),
        waiting_text=write_waiting(waiting, accused if written.suspects else ()),
        suspect_class=_name_class(cause, timed_by),
        suspect_wait=_name_wait(timed_by),
        suspect_wait_s=_time_wait(timed_by),
        collective_timeout_s=find_own_timeout(picture.collective_logs),
        shared_cause=find_shared_cause(picture, entry_of(cause).whom, nodes, accused),
        unlogged=tuple(item.rank for item in picture.unlogged),
        places=Counter(_name_place(item) for item in picture.by_rank.values()),
    )


def _name_place(position: Position) -> str:
    if position.place is Place.ABSENT:
        return "unseen" if position.is_missing else "ended"
    if position.place is Place.UNSEEN:
        return "unseen"
    if position.waits:
        return "device" if position.waits_for_device else "waiting"
    return "elsewhere"


def _are_moving(picture: Picture, positions: Sequence[Position]) -> bool:
    return any(_is_moving(picture, item) for item in positions)


def _is_moving(picture: Picture, position: Position) -> bool:
    """Return whether a rank computes or moves data, on its host or on its GPU."""
    use = picture.gpu_use(position.rank)
    works = use is not None and use.pattern in WORKING
    return works or position.moving or position.transfers


def _rests(position: Position) -> bool:
    return position.unchanged and not position.movement.moves_data


def _is_waiting(position: Position, *, suspect_is_still: bool) -> bool:
    """Return whether a rank that is placed as waiting is relied on to wait.

    A rank that waits only by presumption may as well compute at that line, as every rank does in an
    unmarked evaluation; but then the suspect computes, too. So a rank that is not asleep
    is relied on only if the suspect is named and motionless and two dumps show the rank unchanged.
    """
    if not position.presumed or (position.asleep and not position.moving):
        return True
    return suspect_is_still and position.may_busy_wait


def _list_alternatives(
    ranked: Sequence[Accusation], chosen: Sequence[Accusation]
) -> tuple[Alternative, ...]:
    """List the other accusations; a rank that has a finer reason is not listed as being behind.

    An alternative names another cause, or another rank, so it is true only if all chosen faults are
    wrong. That is the probability left. The confidence of a cause is that of its accusation
    if no other one were known. Alternatives exclude each other, so if their confidences add up to
    more than 1, they are reduced in proportion.
    """
    named = {(rank, each.cause) for each in chosen for rank in each.ranks}
    causes = {each.cause for each in chosen}
    explained = {rank for rank, _ in named}
    others: list[tuple[Accusation, tuple[int, ...]]] = []
    for accusation in ranked:
        ranks = accusation.ranks
        if entry_of(accusation.cause).is_general:
            ranks = tuple(rank for rank in ranks if rank not in explained)
        accuses_none = not accusation.suspects and accusation.cause not in causes
        if {(rank, accusation.cause) for rank in ranks} <= named and not accuses_none:
            continue
        explained |= set(ranks)
        others.append((accusation, ranks))
    left = prod(1 - each.confidence for each in chosen)
    share = left / max(1.0, sum(each.confidence for each, _ in others))
    alternatives = (
        Alternative(cause=each.cause, suspects=ranks, confidence=round(share * each.confidence, 4))
        for each, ranks in others
    )
    return tuple(sorted(alternatives, key=lambda item: -item.confidence)[:MAX_ALTERNATIVES])


def _name_wait(accused: Sequence[Position]) -> str:
    """Return the class of what the first of these ranks waits for.

    If that may be an own thread or child, it is what these wait for. Which of them it is, is not
    known: something outside the node counts first, then storage, because both may take longest.
    """
    first = accused[0] if accused else None
    if first is None or first.waits or first.last_dump is None:
        return ""
    dump, own = first.last_dump, first.wait.wait_class
    if own not in PROCESSES:
        return own
    others = [*(thread.kernel for thread in dump.threads), *(each.kernel for each in dump.children)]
    waits = {classify_wait(each).wait_class for each in others if each is not None}
    foreign = sorted(waits - PROCESSES - {""}, key=lambda each: (each in STORAGE, each))
    return foreign[0] if foreign else own


def _time_wait(accused: Sequence[Position]) -> float | None:
    native = accused[0].native if accused and not accused[0].waits else None
    return None if native is None or native.thread else native.ends_in_s


def _name_class(cause: Cause, accused: Sequence[Position]) -> str:
    frame_class = accused[0].frame_class if accused else FrameClass.NONE
    frame_class = entry_of(cause).frame_class or frame_class
    return "" if frame_class is FrameClass.NONE else frame_class.value
