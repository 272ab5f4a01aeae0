"""The condition of a job: what the detector returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from enum import Enum

from watchtower.evidence.exits import describe_ending
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.ranks import RankRecord
from watchtower.wire.report import Ending, EndingKind
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import clean, count_ranks


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
    """If the kind is not STALLED: a stall that is too short to make the job suspect by its length.
    Its evidence may do that (see `stillness`)."""
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


SIGTERM = 15
"""Signal that launchers and schedulers send to cancel a job (signal(7))."""

MAX_ENDS = 4
"""Most different endings in one sentence, the most frequent first."""

End = tuple[EndingKind, int | None]
"""How a process ended: the kind, and its exit code or signal number if known."""

UNKNOWN: End = (EndingKind.UNKNOWN, None)
FINISHED: End = (EndingKind.EXIT, 0)
CANCELLED: End = (EndingKind.SIGNAL, SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """How the ranks of a job ended. No agent reports a live rank of it."""

    ends: Mapping[End, int]
    """Number of ranks by how they ended."""
    silent: int
    """Number of ranks that were alive when their node stopped reporting."""
    never_seen: int
    """Number of ranks within the world size that no agent ever reported."""
    is_unseen: bool = False
    """Whether a rank ended while no agent watched it, and no agent saw that a rank failed. The job
    may have finished."""

    @property
    def is_finished(self) -> bool:
        """Whether every rank of the job exited with code 0."""
        return self._is_all(FINISHED)

    @property
    def is_cancelled(self) -> bool:
        """Whether SIGTERM ended every rank of the job."""
        return self._is_all(CANCELLED)

    def _is_all(self, end: End) -> bool:
        return set(self.ends) == {end} and not self.silent and not self.never_seen


def find_end(attempt: Attempt) -> JobEnd:
    """Count how the ranks of a job ended."""
    ended = [record for record in attempt.ranks.values() if not record.is_live]
    return JobEnd(
        ends=Counter(_name_end(record.vitals.ended) for record in ended),
        silent=len(attempt.ranks) - len(ended),
        never_seen=max(0, attempt.world_size - len(attempt.ranks)),
        is_unseen=any(record.is_end_unseen for record in ended) and not any(map(_failed, ended)),
    )


def explain_end(end: JobEnd) -> str:
    """Return a clause on how the job ended, and on how many of its ranks were seen."""
    if end.is_finished:
        return "finished: every rank exited with code 0"
    if end.is_cancelled:
        return "cancelled: SIGTERM ended every rank"
    every = _name_ranks_seen(end)
    if end.silent:
        return f"{every} has ended or is on a node that stopped reporting"
    if len(end.ends) == 1:
        return f"{every} {_describe_end(*next(iter(end.ends)))}"
    frequent = sorted(end.ends.items(), key=lambda counted: -counted[1])[:MAX_ENDS]
    parts = (f"{count_ranks(number)} {_describe_end(*how)}" for how, number in frequent)
    return f"{every} has ended: {', '.join(parts)}"


def _failed(record: RankRecord) -> bool:
    """Return whether an agent saw that a rank failed: how it ended, or its uncaught exception."""
    beat = record.vitals.beat
    if beat is not None and beat.exception_type:
        return True
    return not record.is_end_unseen and _name_end(record.vitals.ended) not in (FINISHED, CANCELLED)


def _name_ranks_seen(end: JobEnd) -> str:
    if not end.never_seen:
        return "every rank"
    seen = sum(end.ends.values()) + end.silent
    return f"{seen} of {count_ranks(seen + end.never_seen)} were seen, and each of these"


def _name_end(ended: Ending | None) -> End:
    if ended is None or ended.code is None:
        return UNKNOWN
    kind = ended.kind if ended.kind is EndingKind.SIGNAL else EndingKind.EXIT
    return kind, ended.code


def _describe_end(kind: EndingKind, code: int | None) -> str:
    return describe_ending(Ending(kind=kind, age_s=0.0, code=code))


MAX_NODES_NAMED = 5
"""Most nodes that a sentence names."""


def explain_loss(lost: Iterable[RankRecord], silent: Set[str]) -> str:
    """Return why these ranks are not watched. `silent`: nodes whose agent stopped reporting."""
    lost = list(lost)
    left_out = [record for record in lost if record.key.node not in silent]
    texts = []
    if left_out:
        ranks = name_ranks(record.vitals.rank for record in left_out)
        texts.append(f"no longer reported by the agent on {_name_nodes(left_out)}: {ranks}")
    if len(left_out) < len(lost):
        names = _name_nodes(record for record in lost if record.key.node in silent)
        texts.append(f"the agent on {names} stopped reporting")
    return "; ".join(texts)


def _name_nodes(records: Iterable[RankRecord]) -> str:
    names = sorted({record.key.node for record in records})[:MAX_NODES_NAMED]
    return ", ".join(clean(name, 64) for name in names)
