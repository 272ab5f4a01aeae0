"""How a job ended: as a value, and as a sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from watchtower.evidence.exits import describe_ending
from watchtower.fleet.generation import Generation, RankRecord
from watchtower.wire.report import Ending, EndingKind
from watchtower.writing.text import count_ranks

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


def find_end(gen: Generation) -> JobEnd:
    """Count how the ranks of a job ended."""
    ended = [record for record in gen.ranks.values() if not record.is_live]
    return JobEnd(
        ends=Counter(_name_end(record.vitals.ended) for record in ended),
        silent=len(gen.ranks) - len(ended),
        never_seen=max(0, gen.world_size - len(gen.ranks)),
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
