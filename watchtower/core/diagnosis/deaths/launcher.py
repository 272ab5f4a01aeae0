"""Ranks that a launcher or a scheduler ended: the whole job, or what was left after a death.

A launcher ends its ranks by SIGTERM, SIGINT or SIGKILL, several at one moment. If a rank died
before, the launcher reacted to that death. If none did, the job was cancelled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from watchtower.core.diagnosis.deaths.death import JITTER_S, Death, Earliest
from watchtower.core.reading.exits import DeathKind

SENT = frozenset({DeathKind.TERMINATED, DeathKind.KILLED})
"""Deaths that another process brings about."""

NO_CAUSE = frozenset({DeathKind.CONSEQUENTIAL, DeathKind.CLEAN})
"""Deaths that do not make other ranks of the job die."""

KILL_GAP_S = 0.25
"""Ranks killed at one moment end this close to each other, although large ones take longer."""

_COMPATIBLE_WITH_CANCELLING = SENT | {DeathKind.CONSEQUENTIAL, DeathKind.CLEAN}


def find_put_to_death(deaths: Sequence[Death]) -> frozenset[int]:
    """List the ranks that a launcher ended because another rank had died before.

    One signal may have any reason, so the other death must certainly be the earlier one. Several
    at one moment are a launcher's: there, the times that the nodes report are enough. So they are
    for further signals of a launcher that is known to have sent some.
    """
    any_death = Earliest(death for death in deaths if death.kind is not DeathKind.CLEAN)
    cause = Earliest(death for death in deaths if death.kind not in NO_CAUSE)
    ranks: set[int] = set()
    for kind in SENT:
        sent = [death for death in deaths if death.kind is kind]
        known = {death.rank for death in sent if any_death.is_before(death)}
        for act in _split(sent, KILL_GAP_S):
            if len(act) > 1 and any_death.is_reported_before(act[0], JITTER_S):
                known.update(death.rank for death in act)
        if known:
            known.update(d.rank for d in sent if cause.is_reported_before(d, JITTER_S))
        ranks |= known
    return frozenset(ranks)


def find_sent_together(deaths: Sequence[Death]) -> frozenset[int]:
    """List the ranks that one kind of signal ended at one moment with others."""
    ranks: set[int] = set()
    for kind in SENT:
        for act in _split([death for death in deaths if death.kind is kind], JITTER_S):
            if len(act) > 1:
                ranks.update(death.rank for death in act)
    return frozenset(ranks)


def find_ended_from_outside(
    deaths: Sequence[Death], ranks: int, settle_s: float
) -> tuple[Death, ...]:
    """List the ranks that were ended on purpose, with most of the job and for no earlier death.

    The list is empty if a death with a reason of its own came first, or if the first that ended
    are too few: then that signal went to these ranks, not to the job. Some ranks may live on.
    """
    for kind, gap_s in ((DeathKind.TERMINATED, settle_s), (DeathKind.KILLED, KILL_GAP_S)):
        sent = _find_sent(kind, deaths)
        if sent and _is_of_most(sent, deaths, ranks, gap_s):
            return tuple(death for death in deaths if death.kind in SENT)
    return ()


def _find_sent(kind: DeathKind, deaths: Sequence[Death]) -> list[Death]:
    """List the deaths of a kind, if they begin the end of the job and no own reason is beside."""
    first = next((death for death in deaths if death.kind is not DeathKind.CLEAN), None)
    if first is None or first.kind is not kind:
        return []
    reasons = Earliest(death for death in deaths if death.kind not in SENT | {DeathKind.CLEAN})
    sent = [death for death in deaths if death.kind is kind and not reasons.is_before(death)]
    earliest = Earliest(sent)
    own = (death for death in deaths if death.kind not in _COMPATIBLE_WITH_CANCELLING)
    return sent if all(earliest.is_before(death) for death in own) else []


def _is_of_most(sent: Sequence[Death], deaths: Sequence[Death], ranks: int, gap_s: float) -> bool:
    """Return whether a signal went to the job and not only to some of its ranks.

    Half of the ranks are enough if the others died, too: they lost their connections before the
    signal reached them. One rank, and others that its launcher ended for it, are not half a job.
    """
    if ranks == 1:
        return sent[0].kind is DeathKind.TERMINATED
    put_to_death = find_put_to_death(deaths)
    alone = sum(death.rank not in put_to_death for death in sent)
    is_half = len(deaths) == ranks <= 2 * alone
    first = next(_split(sent, gap_s))
    return 2 * len(first) >= ranks and (2 * len(sent) > ranks or is_half)


def _split(deaths: Sequence[Death], gap_s: float) -> Iterator[list[Death]]:
    """Part deaths, the earliest first, where the next one comes later than the gap."""
    part: list[Death] = []
    for death in deaths:
        if part and part[-1].age_s - death.age_s > gap_s:
            yield part
            part = []
        part.append(death)
    if part:
        yield part
