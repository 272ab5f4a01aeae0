"""Cases that are nobody's fault, and the words for not knowing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from watchtower.core.case import Case
from watchtower.core.diagnosis.deaths.death import find_deaths
from watchtower.core.diagnosis.deaths.launcher import is_cancelled
from watchtower.core.diagnosis.evidence_wording import name_waits
from watchtower.core.diagnosis.finding import Finding
from watchtower.core.diagnosis.held_ranks import is_suspended
from watchtower.core.diagnosis.standing import Place, Standing
from watchtower.core.diagnosis.standings import Standings
from watchtower.core.ranksets import count_ranks, name_ranks
from watchtower.core.reading.exits import DeathKind

MAX_CANDIDATES = 3


def finished(standings: Standings) -> bool:
    """Tell whether every rank exited with 0."""
    deaths = find_deaths(standings)
    return len(deaths) == len(standings.by_rank) > 0 and all(
        death.kind is DeathKind.CLEAN for death in deaths
    )


def explain_without_fault(case: Case, standings: Standings) -> str:
    """Say why nobody is accused although the job does not step; empty when that is not known."""
    count = count_ranks(len(standings.by_rank))
    if is_suspended(standings):
        return f"all {count_ranks(len(standings.live))} are stopped: the job is suspended"
    if standings.live and all(item.is_frozen for item in standings.live):
        return f"all {count_ranks(len(standings.live))} are frozen by their cgroups: suspended"
    if is_cancelled(standings, case.settle_s):
        return f"all {count} were ended from outside (SIGTERM or the like): the job was cancelled"
    if finished(standings):
        return f"all {count} exited with 0: the job is over"
    return ""


def summarise_unknown(standings: Standings, ranked: Sequence[Finding]) -> str:
    """Say what is seen when no finding is sure enough, with the likeliest candidates."""
    seen = _say_seen(standings)
    candidates = [_say_candidate(finding) for finding in ranked[:MAX_CANDIDATES]]
    return f"{seen}; candidates: {', '.join(candidates)}" if candidates else seen


def _say_candidate(finding: Finding) -> str:
    whom = name_ranks(suspect.rank for suspect in finding.suspects) if finding.suspects else ""
    return f"{finding.cause.value}{whom and f' of {whom}'} ({finding.confidence:.0%})"


def _say_seen(standings: Standings) -> str:
    live, waiting = standings.live, standings.waiting
    if live and len(waiting) == len(live):
        seen = f"all {count_ranks(len(live))} wait in {name_waits(waiting)} and none is behind"
    elif waiting:
        seen = f"{len(waiting)} of {count_ranks(len(live))} wait in {name_waits(waiting)}"
    else:
        seen = f"no rank is seen to wait for another ({count_ranks(len(live))} live)"
    missing = len(standings.at(Place.MISSING))
    unseen = f", {count_ranks(missing)} never seen" if missing else ""
    return seen + unseen + "".join(_say_unknown(standings.unknown))


def _say_unknown(unknown: Sequence[Standing]) -> Iterator[str]:
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
