"""Cases that are nobody's fault, and the words for not knowing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from watchtower.core.diagnosis.evidence_wording import name_waits
from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.held_ranks import is_suspended
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.position import Position
from watchtower.core.ranksets import count_ranks, name_ranks
from watchtower.core.reading.exits import DeathKind

MAX_CANDIDATES = 3


def finished(picture: Picture) -> bool:
    """Tell whether every rank exited with 0."""
    deaths = picture.deaths
    return len(deaths) == len(picture.by_rank) > 0 and all(
        death.kind is DeathKind.CLEAN for death in deaths
    )


def explain_without_fault(picture: Picture) -> str:
    """Say why nobody is accused although the job does not step; empty when that is not known."""
    count = count_ranks(len(picture.by_rank))
    if is_suspended(picture):
        return f"all {count_ranks(len(picture.live))} are stopped: the job is suspended"
    if picture.live and all(item.is_frozen for item in picture.live):
        return f"all {count_ranks(len(picture.live))} are frozen by their cgroups: suspended"
    if picture.is_cancelled:
        return f"all {count} were ended from outside (SIGTERM or the like): the job was cancelled"
    if finished(picture):
        return f"all {count} exited with 0: the job is over"
    return ""


def summarise_unknown(picture: Picture, ranked: Sequence[Finding]) -> str:
    """Say what is seen when no finding is sure enough, with the likeliest candidates."""
    seen = _say_seen(picture)
    candidates = [_say_candidate(finding) for finding in ranked[:MAX_CANDIDATES]]
    return f"{seen}; candidates: {', '.join(candidates)}" if candidates else seen


def _say_candidate(finding: Finding) -> str:
    whom = name_ranks(suspect.rank for suspect in finding.suspects) if finding.suspects else ""
    return f"{finding.cause.value}{whom and f' of {whom}'} ({finding.confidence:.0%})"


def _say_seen(picture: Picture) -> str:
    live, waiting = picture.live, picture.waiting
    if live and len(waiting) == len(live):
        seen = f"all {count_ranks(len(live))} wait in {name_waits(waiting)} and none is behind"
    elif waiting:
        seen = f"{len(waiting)} of {count_ranks(len(live))} wait in {name_waits(waiting)}"
    else:
        seen = f"no rank is seen to wait for another ({count_ranks(len(live))} live)"
    missing = len(picture.missing)
    unseen = f", {count_ranks(missing)} never seen" if missing else ""
    return seen + unseen + "".join(_say_unknown(picture.unseen))


def _say_unknown(unknown: Sequence[Position]) -> Iterator[str]:
    """Tell those whose node is silent from those that live and were only not seen well enough."""
    live = [item for item in unknown if item.live]
    bare = sum(item.stack is None for item in live)
    for count, words in (
        (len(unknown) - len(live), "did not answer"),
        (bare, "gave no stack"),
        (len(live) - bare, "may wait or work"),
    ):
        if count:
            yield f", {count_ranks(count)} {words}"
