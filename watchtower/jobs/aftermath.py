"""Ranks that are lost after an incident opened, and whether such a loss may change its verdict.

A hang often ends when a user or a launcher kills the job. These deaths do not explain the hang, so
the verdict that was made while the ranks were alive stays. The exception is a process that was
already dying: the kernel may dump its core or reclaim its memory for a minute, and only its death
shows the cause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from itertools import islice

from watchtower.diagnosis.causes import entry_of
from watchtower.diagnosis.diagnosed import Diagnosis
from watchtower.evidence.exits import (
    SAME_MOMENT_S,
    DeathKind,
    classify_ending,
    describe_ending,
)
from watchtower.jobs.agents import NodeReport, find_last_report
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.detector import Detector
from watchtower.wire.verdict import Cause
from watchtower.writing.text import clean

OWN_DEATHS = frozenset(
    {DeathKind.OOM, DeathKind.CRASH, DeathKind.OWN_EXCEPTION, DeathKind.EXIT_CODE}
)
"""Deaths that the process itself caused. Not included: signals from a launcher or a user, deaths
because a peer was lost, and SIGABRT, which watchdogs raise when they stop waiting."""

MAX_GROUPS = 8
"""Most groups of losses in a list. The last group contains all remaining losses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The verdict of an incident, made while its ranks were alive: the first or a later one."""

    at: float
    """When the incident opened."""
    cause: Cause
    ranks: frozenset[int]
    """The suspects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A rank that ended, or is no longer reported, after the incident opened."""

    rank: int
    at: float
    kind: DeathKind | None
    """The kind by the text of the error alone: the diagnosis that names a rank decides whether its
    error may follow another death. None if the rank is no longer reported."""
    text: str
    """A description such as "ended by SIGTERM"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossGroup:
    """Ranks that were lost in the same way."""

    at: float
    """When the first of them was lost."""
    ranks: tuple[int, ...]
    text: str


def find_losses(
    attempt: Attempt, nodes: Mapping[str, NodeReport], detector: Detector, since: float, now: float
) -> dict[int, Loss]:
    """Return the ranks lost after `since`, by rank."""
    losses: dict[int, Loss] = {}
    reporting = {r.vitals.rank for r in detector.find_reporting(attempt.live(), nodes, now)}
    texts: dict[str, str] = {}
    for rank, record in attempt.ranks.items():
        if record.ended_at is not None:
            if record.ended_at > since:
                ended = record.vitals.ended
                kind = classify_ending(ended)
                losses[rank] = Loss(
                    rank=rank, at=record.ended_at, kind=kind, text=describe_ending(ended)
                )
        elif rank not in reporting and record.seen_at > since:
            name = record.key.node
            # Computed once per node, not per rank: a job has thousands of ranks on few nodes.
            if name not in texts:
                is_silent = detector.is_silent(find_last_report(record, nodes), now)
                texts[name] = _describe_silence(name, is_silent)
            losses[rank] = Loss(rank=rank, at=record.seen_at, kind=None, text=texts[name])
    return losses


def _describe_silence(name: str, is_silent: bool) -> str:
    name = clean(name, 64)
    if is_silent:
        return f"node {name} stopped reporting"
    return f"no longer reported by the agent on {name}"


def may_replace_verdict(
    opening: Opening, diagnosis: Diagnosis, losses: Mapping[int, Loss], ranks: int
) -> bool:
    """Return whether a diagnosis made after the opening may replace the incident's verdict.

    It may if no rank was lost. After a loss it may if both of these hold:
    * Its suspects caused their own deaths, and died before all other ranks.
    * The verdict so far has no known cause, or the same suspects with a cause of dying ranks.

    `losses` must be complete: no rank was lost for a while. `ranks` is the number of ranks.
    """
    if not losses:
        return True
    named = frozenset(suspect.rank for suspect in diagnosis.suspects)
    if not named or not _died_by_themselves(named, losses, ranks):
        return False
    if opening.cause is Cause.UNKNOWN:
        return True
    was_dying = entry_of(diagnosis.cause).shows_dying or entry_of(opening.cause).of_dying
    return was_dying and named == opening.ranks


def _died_by_themselves(named: Set[int], losses: Mapping[int, Loss], ranks: int) -> bool:
    """Return whether only the named ranks caused their own deaths, before all other ranks ended.

    If another rank ended in the same way, the ranks were asked to end by a signal that their
    program handles.
    """
    deaths = [losses[rank] for rank in named if rank in losses]
    if len(deaths) < len(named) or 2 * len(named) >= ranks:
        return False
    if any(death.kind not in OWN_DEATHS for death in deaths):
        return False
    ways = {death.text for death in deaths}
    others = [loss for rank, loss in losses.items() if rank not in named]
    if any(other.text in ways for other in others):
        return False
    first_at = min((other.at for other in others), default=deaths[0].at)
    return min(death.at for death in deaths) <= first_at + SAME_MOMENT_S


def group_losses(losses: Iterable[Loss]) -> list[LossGroup]:
    """Return the losses grouped by their description, earliest first, at most `MAX_GROUPS`."""
    by_text: dict[str, list[Loss]] = {}
    for loss in sorted(losses, key=lambda loss: (loss.at, loss.rank)):
        by_text.setdefault(loss.text, []).append(loss)
    kept = dict(islice(by_text.items(), MAX_GROUPS - 1 if len(by_text) > MAX_GROUPS else None))
    rest = [loss for text, members in by_text.items() if text not in kept for loss in members]
    if rest:
        kept["ended in other ways"] = rest
    return [
        LossGroup(at=members[0].at, ranks=tuple(sorted(loss.rank for loss in members)), text=text)
        for text, members in kept.items()
    ]
