"""The condition of a job: what the detector returns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import count_ranks


class ConditionKind(Enum):
    """The states of a job that the detector distinguishes."""

    STEPPING = "stepping"
    STARTING = "starting"
    UNWATCHED = "unwatched"
    """No rank has heartbeats, and there are not enough samples yet."""
    CHANGING = "changing"
    """No rank has heartbeats, but samples show changes."""
    IDLE = "idle"
    """No rank has heartbeats, and a rank waits for a client: the job has nothing to do."""
    STEPLESS = "stepless"
    """No step for longer than in a healthy job, but no rank is past its deadline yet."""
    BLIND = "blind"
    """No rank has heartbeats, and samples show no stack: the job is not watched."""
    SLOW = "slow"
    STALLED = "stalled"
    SUSPENDED = "suspended"
    ENDED = "ended"
    ENDING = "ending"
    """All ranks have ended, the last one a moment ago: reports about others may still arrive."""
    LOST = "lost"
    """Agents stopped reporting."""


class Why(Enum):
    """Why a job is stalled."""

    OVERDUE = "overdue"
    STARTUP = "startup"
    DEATH = "death"
    ERROR = "error"
    """A collector observed an error with which a rank cannot continue."""
    UNCHANGED = "unchanged"
    """No rank has heartbeats, and samples show no change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Ranks that made no step in time, or that died while the other ranks make no steps."""

    why: Why
    since: float
    """Time of the last step of the rank that stopped first, or of the first death. While the job
    is starting: when its first rank was seen."""
    ranks: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """The state of a job, and the reason for it as a sentence."""

    kind: ConditionKind
    reason: str
    stall: Stall | None = None
    is_end_unseen: bool = False
    """Whether the job ended, and nothing shows that a rank failed (see `JobEnd.is_unseen`)."""


def explain_stall(stall: Stall, step: int, now: float) -> str:
    """Return the reason for a stall as a sentence. `step`: the last step of the job, or -1."""
    waited = f"{now - stall.since:.1f} s"
    if stall.why is Why.DEATH:
        return f"{name_ranks(stall.ranks)} died {waited} ago and the other ranks make no steps"
    if stall.why is Why.ERROR:
        return f"{name_ranks(stall.ranks)} had a fatal GPU error {waited} ago"
    if stall.why is Why.STARTUP and step >= 0:
        return f"no step since step {step}, {waited} ago; how long a step takes is not known"
    if stall.why is Why.STARTUP:
        return f"no first steps {waited} after the start"
    if stall.why is Why.UNCHANGED:
        return f"nothing has changed in {count_ranks(len(stall.ranks))} for {waited}"
    if len(stall.ranks) == 1:
        return f"{name_ranks(stall.ranks)} has not stepped for {waited}"
    return f"{count_ranks(len(stall.ranks))} have not stepped for up to {waited}"
