"""Ranks of the world size that nobody has seen, while the others wait in set-up.

A rank that trains on a node without an agent looks missing too: once any rank has stepped, the
missing ones must be there, and only unwatched.
"""

from __future__ import annotations

from watchtower.core.diagnosis.evidence_wording import name_wait, peers_evidence
from watchtower.core.diagnosis.finding import Finding, Tier
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Position
from watchtower.core.diagnosis.weighing import DOUBT_CEILING, weigh
from watchtower.core.phrases import say_duration
from watchtower.core.ranksets import count_ranks, format_ranks, name_ranks
from watchtower.core.reading.frames import FrameClass
from watchtower.wire.verdict import Cause, Evidence, Suspect

ABSENT_WEIGHT = 0.75
MAX_NAMED = 64
"""Suspects listed one by one; the summary has all of them as a rank set."""


def find(picture: Picture) -> Finding | None:
    """Accuse the missing ranks."""
    missing = picture.missing
    if not missing or _has_trained(picture):
        return None
    in_init = [item for item in picture.waiting if item.frame_class is FrameClass.INIT]
    size, stalled = picture.case.world_size, say_duration(picture.case.stalled_for_s)
    absent = Evidence(
        source="process",
        text=(f"{count_ranks(len(picture.case.ranks) - len(missing))} of {size} seen in {stalled}"),
        ranks=format_ranks(item.rank for item in missing),
        weight=ABSENT_WEIGHT,
    )
    evidence = (absent, *peers_evidence(picture, missing))
    plural = len(missing) > 1
    return Finding(
        cause=Cause.NEVER_STARTED,
        tier=Tier.NEVER_CAME,
        confidence=weigh(evidence, ceiling=_find_ceiling(picture, missing)),
        suspects=tuple(_accuse(item) for item in missing[:MAX_NAMED]),
        summary=(
            f"{name_ranks(item.rank for item in missing)} of {size} "
            f"{'have' if plural else 'has'} not been seen for {stalled} "
            f"since the first rank started{_say_waiting(in_init, plural)}"
        ),
        evidence=evidence,
        next_steps=(
            f"look at the launcher's output for {name_ranks(item.rank for item in missing)}: "
            "was the process started, on which node, did it end at once?",
            "check that every node of the job runs an agent and that the world size is right",
        ),
    )


def _has_trained(picture: Picture) -> bool:
    in_init = any(item.frame_class is FrameClass.INIT for item in picture.waiting)
    return not in_init and any(item.step is not None for item in picture.by_rank.values())


def _find_ceiling(picture: Picture, missing: tuple[Position, ...]) -> float:
    """Most ranks missing: more likely their nodes are not watched, or the world size is wrong."""
    return DOUBT_CEILING if len(missing) > len(picture.live) else 1.0


def _accuse(position: Position) -> Suspect:
    return Suspect(
        rank=position.rank,
        node="",
        cause=Cause.NEVER_STARTED,
        why="No process with this rank was seen on any watched node",
    )


def _say_waiting(in_init: list[Position], plural: bool) -> str:
    if not in_init:
        return ""
    verb = "waits" if len(in_init) == 1 else "wait"
    whom = "them" if plural else "it"
    return f"; {count_ranks(len(in_init))} {verb} for {whom} in {name_wait(in_init)}"
