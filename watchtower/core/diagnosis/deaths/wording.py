"""Wording of deaths: how a rank ended, and what became of the others. Decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from watchtower.core.diagnosis.deaths.death import Death, is_before
from watchtower.core.diagnosis.evidence_wording import (
    accuse,
    beat_evidence,
    name_rank,
    peers_evidence,
    say_others,
)
from watchtower.core.diagnosis.finding import Finding, Tier
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.weighing import weigh
from watchtower.core.phrases import clean, join_words, say_duration
from watchtower.core.ranksets import count_ranks, format_ranks, name_ranks
from watchtower.core.reading.exits import DeathKind, signal_name
from watchtower.core.reading.frames import last_component
from watchtower.wire.report import Ending
from watchtower.wire.verdict import Cause, Evidence

ENDING_WEIGHTS = {
    DeathKind.OOM: 0.95,
    DeathKind.CRASH: 0.9,
    DeathKind.OWN_EXCEPTION: 0.9,
    DeathKind.EXIT_CODE: 0.85,
    DeathKind.KILLED: 0.85,
    DeathKind.EXIT_ONE: 0.75,
    DeathKind.VANISHED: 0.6,
    DeathKind.ABORTED: 0.6,
    DeathKind.CONSEQUENTIAL: 0.4,
    DeathKind.TERMINATED: 0.6,
    DeathKind.CLEAN: 0.6,
}
"""How likely a death of this kind is first-hand when nothing stronger was found."""

AFTERMATH = {
    DeathKind.CONSEQUENTIAL: "died of the broken connection",
    DeathKind.TERMINATED: "got SIGTERM or the like",
    DeathKind.KILLED: "got SIGKILL",
    DeathKind.ABORTED: "aborted",
    DeathKind.CLEAN: "exited with 0",
}


def accuse_dead(
    picture: Picture,
    culprits: Sequence[Death],
    *,
    cause: Cause,
    next_steps: Sequence[str],
    extra: Sequence[Evidence] = (),
    ceiling: float = 1.0,
) -> Finding:
    """Write the finding that these ranks ended first-hand."""
    suspects = [death.position for death in culprits]
    first = culprits[0]
    aftermath = say_aftermath(picture, culprits)
    evidence = [*map(ending_evidence, culprits[:3]), *peers_evidence(picture, suspects), *extra]
    evidence += beat_evidence(picture, first.position)
    evidence += _aftermath_evidence(picture, culprits)
    rest = f"; likewise {name_ranks(death.rank for death in culprits[1:])}" if culprits[1:] else ""
    others = say_others(picture, suspects) + (f"; {aftermath}" if aftermath else "")
    doubt = 0.9 if len(culprits) > 1 else 1.0
    return Finding(
        cause=cause,
        tier=Tier.CANNOT_ANSWER,
        confidence=weigh(evidence, ceiling=min(doubt, ceiling)),
        suspects=tuple(accuse(death.position, cause, say_ending(death)) for death in culprits),
        summary=f"{name_rank(first.position)} {say_ending(first)}{rest}{others}",
        evidence=tuple(evidence),
        next_steps=tuple(next_steps),
    )


def say_ending(death: Death) -> str:
    """Say "exited with code 3 after step 41, 2 s ago"."""
    step = death.position.step
    after = "" if step is None else f" after step {step}"
    return f"{say_how(death)}{after}, {say_duration(death.age_s)} ago"


def say_how(death: Death) -> str:
    """Say "exited with code 3" or "raised ValueError: bad shard"."""
    ending = death.ending
    if ending is None or death.kind is DeathKind.VANISHED:
        return "is gone, its node cannot tell how it ended"
    if ending.oom_killed:
        return "was killed by the kernel for memory (OOM)"
    if ending.exception_type:
        return f"raised {say_exception(ending)}"
    signal = signal_name(ending)
    return f"was killed by {signal}" if signal else f"exited with code {ending.code}"


def say_words(exception_type: str, text: str) -> str:
    """Say "ValueError: bad shard", empty without an exception."""
    name, text = clean(last_component(exception_type), 80), clean(text)
    return f"{name}: {text}" if text else name


def say_exception(ending: Ending) -> str:
    """Say "ValueError: bad shard"."""
    return say_words(ending.exception_type, ending.exception_text)


def ending_evidence(death: Death) -> Evidence:
    """Quote how the rank ended."""
    return Evidence(
        source="ending",
        text=f"rank {death.rank} {say_ending(death)}",
        ranks=str(death.rank),
        weight=ENDING_WEIGHTS[death.kind],
    )


def say_aftermath(picture: Picture, culprits: Sequence[Death]) -> str:
    """Say what became of the other dead: "6 ranks died of the broken connection", or nothing."""
    return _count_kinds(_find_others(picture, culprits))


def _aftermath_evidence(picture: Picture, culprits: Sequence[Death]) -> list[Evidence]:
    others = _find_others(picture, culprits)
    by_time: dict[str, list[Death]] = {}
    for death in others:
        by_time.setdefault(_say_when(death, culprits[0]), []).append(death)
    if not others:
        return []
    words = "; ".join(f"{when} {_count_kinds(deaths)}" for when, deaths in by_time.items())
    ranks = format_ranks(death.rank for death in others)
    return [Evidence(source="aftermath", text=words, ranks=ranks, weight=0.3)]


def _find_others(picture: Picture, culprits: Sequence[Death]) -> list[Death]:
    """List the other deaths, the earliest first."""
    accused = {death.rank for death in culprits}
    return [death for death in picture.deaths if death.rank not in accused]


def _say_when(death: Death, first: Death) -> str:
    if is_before(death, first):
        return "before that,"
    return "at the same moment" if death.age_s > first.age_s else "afterwards"


def _count_kinds(deaths: Sequence[Death]) -> str:
    counts = Counter(AFTERMATH.get(death.kind, "ended") for death in deaths)
    return join_words([f"{count_ranks(number)} {words}" for words, number in counts.items()])
