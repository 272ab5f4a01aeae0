"""Decides who hung the job, where and why, from one immutable case.

Runs every rule, takes the best finding by tier and confidence, and tells the runners-up and what
evidence was missing. Below `MIN_CONFIDENCE` the answer is `unknown` with ranked alternatives.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from watchtower.core.case import Case
from watchtower.core.diagnosed import Diagnosis
from watchtower.core.diagnosis.evidence_wording import bad_loss_evidence, say_waiting
from watchtower.core.diagnosis.finding import Finding, Tier
from watchtower.core.diagnosis.gaps import find_gaps
from watchtower.core.diagnosis.nofault import explain_without_fault, summarise_unknown
from watchtower.core.diagnosis.picture import Picture, take_picture
from watchtower.core.diagnosis.position import Position
from watchtower.core.diagnosis.rules import RULES, SLOW_RULES, Rule
from watchtower.core.diagnosis.shared_cause import find_shared_cause
from watchtower.core.diagnosis.slowness import explain_slow_job
from watchtower.core.diagnosis.unseen import advise_unseen, show_unseen
from watchtower.core.diagnosis.weighing import MIN_CONFIDENCE, UNBEATEN_CEILING
from watchtower.core.ranksets import format_ranks, name_ranks
from watchtower.core.reading.frames import FrameClass
from watchtower.wire.verdict import Alternative, Cause, Evidence, Suspect

MAX_ALTERNATIVES = 4
MAX_EVIDENCE = 24
"""Enough to check a verdict by; everything else is in the case itself."""


def diagnose(case: Case, rules: Sequence[tuple[str, Rule]] | None = None) -> Diagnosis:
    """Name the suspects of a case, or say that it does not tell."""
    picture = take_picture(case)
    is_slow = case.slowdown > 1
    if rules is None:
        rules = SLOW_RULES if is_slow else RULES
    findings, broken = _run_rules(picture, rules)
    if all(item.beat is None for item in case.ranks):
        findings = [_less_sure(finding) for finding in findings]
    if is_slow and not any(finding.confidence >= MIN_CONFIDENCE for finding in findings):
        findings.append(explain_slow_job(picture))
    ranked = sorted(findings, key=lambda finding: (finding.tier, -finding.confidence))
    sure = [finding for finding in ranked if finding.confidence >= MIN_CONFIDENCE]
    missing = (*broken, *find_gaps(picture))
    if not sure:
        return _write_unknown(picture, ranked, missing)
    best = _join_faults(sure)
    accused = _positions_of(best.suspects, picture)
    return replace(
        _write(picture, best, accused),
        missing_evidence=missing,
        alternatives=_write_alternatives(ranked, best),
    )


def _run_rules(
    picture: Picture, rules: Sequence[tuple[str, Rule]]
) -> tuple[list[Finding], list[str]]:
    findings: list[Finding] = []
    broken: list[str] = []
    for name, rule in rules:
        try:
            finding = rule(picture)
        except Exception as error:
            broken.append(f"rule {name} failed ({type(error).__name__}) and was left out")
            continue
        if finding is not None:
            findings.append(finding)
    return findings, broken


def _less_sure(finding: Finding) -> Finding:
    return replace(finding, confidence=min(finding.confidence, UNBEATEN_CEILING))


def _join_faults(sure: Sequence[Finding]) -> Finding:
    """Join independent faults of one tier: other ranks, each with a reason of its own.

    The cause is the strongest one's; each suspect keeps its own.
    """
    best = sure[0]
    for finding in sure[1:]:
        accused = {suspect.rank for suspect in best.suspects}
        other = finding
        if finding.cause is Cause.BEHIND_COLLECTIVE:
            # Without collective logs it is not known whether the others wait for them.
            if finding.tier is not Tier.WAIT_FOR:
                continue
            other = _without(accused, finding)
        named = {suspect.rank for suspect in other.suspects}
        if other.tier is not best.tier or not named or accused & named:
            continue
        best = replace(
            best,
            suspects=(*best.suspects, *other.suspects),
            evidence=(*best.evidence, *other.evidence),
            summary=f"{best.summary}; also {other.cause.value} of {name_ranks(named)}",
            next_steps=(*best.next_steps, *other.next_steps[:1]),
        )
    return best


def _without(accused: Set[int], finding: Finding) -> Finding:
    """Leave out those for whom a finer reason was found."""
    suspects = tuple(item for item in finding.suspects if item.rank not in accused)
    kept = {format_ranks([item.rank]) for item in suspects}
    return replace(
        finding,
        suspects=suspects,
        evidence=tuple(item for item in finding.evidence if item.ranks in kept),
        next_steps=(),
    )


def _write(picture: Picture, finding: Finding, accused: Sequence[Position]) -> Diagnosis:
    waiting = picture.waiting_without(item.rank for item in accused)
    is_still = bool(finding.suspects) and all(item.is_motionless for item in accused)
    seen = dict.fromkeys([*finding.evidence, *bad_loss_evidence(picture)])
    evidence = sorted(seen, key=lambda item: -item.weight)
    return Diagnosis(
        cause=finding.cause,
        confidence=finding.confidence,
        suspects=finding.suspects,
        summary=finding.summary,
        waiting=format_ranks(item.rank for item in waiting),
        step=picture.step,
        stalled_for_s=picture.case.stalled_for_s,
        evidence=tuple(evidence[:MAX_EVIDENCE]),
        next_steps=finding.next_steps,
        suspects_moving=any(item.moving or item.transfers for item in accused),
        suspects_transfer=any(item.transfers for item in accused),
        peers_waiting=any(_is_waiting(item, suspect_is_still=is_still) for item in waiting),
        said_waiting=say_waiting(waiting, accused if finding.suspects else ()),
        suspect_class=_name_class(finding, accused),
        shared_cause=find_shared_cause(finding.suspects, accused or picture.live),
    )


def _is_waiting(position: Position, *, suspect_is_still: bool) -> bool:
    """Return whether a rank that is placed as waiting is relied on to wait.

    A rank that waits only by presumption may as well compute at that line, as every rank does in an
    unmarked evaluation; but then the suspect computes, too. So a rank that is not asleep
    is relied on only if the suspect is named and motionless and two dumps show the rank unchanged.
    """
    if not position.presumed or (position.asleep and not position.moving):
        return True
    return suspect_is_still and position.may_busy_wait


def _write_unknown(
    picture: Picture, ranked: Sequence[Finding], missing: tuple[str, ...]
) -> Diagnosis:
    explained = explain_without_fault(picture)
    likeliest = sorted(ranked, key=lambda finding: -finding.confidence)
    candidates = _positions_of(likeliest[0].suspects, picture) if likeliest else ()
    evidence: tuple[Evidence, ...] = ()
    next_steps: tuple[str, ...] = ()
    if not explained:
        evidence = likeliest[0].evidence if likeliest else show_unseen(picture)
        next_steps = likeliest[0].next_steps if likeliest else advise_unseen(picture)
    finding = Finding(
        cause=Cause.UNKNOWN,
        tier=Tier.NOTHING,
        confidence=0.0,
        suspects=(),
        summary=explained or summarise_unknown(picture, likeliest),
        evidence=evidence,
        next_steps=next_steps,
    )
    return replace(
        _write(picture, finding, candidates),
        missing_evidence=missing,
        alternatives=() if explained else _write_alternatives(likeliest, finding),
    )


def _write_alternatives(ranked: Sequence[Finding], chosen: Finding) -> tuple[Alternative, ...]:
    """List the other findings; being behind is none for a rank that has a finer reason."""
    told = {(suspect.rank, suspect.cause) for suspect in chosen.suspects}
    explained = {suspect.rank for suspect in chosen.suspects}
    alternatives = []
    for finding in ranked:
        ranks = tuple(suspect.rank for suspect in finding.suspects)
        if finding.cause is Cause.BEHIND_COLLECTIVE:
            ranks = tuple(rank for rank in ranks if rank not in explained)
        accuses_nobody = not finding.suspects and finding.cause is not chosen.cause
        if {(rank, finding.cause) for rank in ranks} <= told and not accuses_nobody:
            continue
        explained |= set(ranks)
        alternatives.append(
            Alternative(cause=finding.cause, suspects=ranks, confidence=finding.confidence)
        )
    return tuple(sorted(alternatives, key=lambda item: -item.confidence)[:MAX_ALTERNATIVES])


def _positions_of(suspects: Sequence[Suspect], picture: Picture) -> tuple[Position, ...]:
    return tuple(picture.by_rank[suspect.rank] for suspect in suspects)


def _name_class(finding: Finding, accused: Sequence[Position]) -> str:
    if finding.cause is Cause.CHECKPOINT_STALL:
        return FrameClass.CHECKPOINT.value
    frame_class = accused[0].frame_class if accused else FrameClass.NONE
    return "" if frame_class is FrameClass.NONE else frame_class.value
