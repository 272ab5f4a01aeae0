"""Ranks that are reported and not watched: what agents report, and what the tower does not accept.

Every process that an agent recognizes as a rank is either watched or counted here, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from watchtower.fleet.claims import Claim
from watchtower.fleet.job import Job
from watchtower.fleet.node import UnwatchedRanks
from watchtower.wire.report import (
    MAX_UNWATCHED,
    MAX_UNWATCHED_PIDS,
    OTHER_REASONS,
    OVER_LIMIT,
    Report,
)

SECOND_CLAIM = "second_claim"
EARLIER_ATTEMPT = "earlier_attempt"
MANY_ATTEMPTS = "many_attempts"

TEXTS = {
    SECOND_CLAIM: "another process has the same rank of {job}. A job of its own needs another "
    "WATCHTOWER_JOB. End what is left over",
    EARLIER_ATTEMPT: "left over from an earlier attempt of {job}. End what is not needed, because "
    "it may use GPUs",
    MANY_ATTEMPTS: "{job} restarts too often. Its next attempt is watched after at most 10 s",
    OVER_LIMIT: "{job} is over a limit: its owner, its node or the tower has too many jobs or "
    "ranks",
    OTHER_REASONS: "the reasons differ, and this node has too many such jobs to list each. End "
    "what is not needed",
}
"""By reason: why a process is not watched, and what to do."""


@dataclass(slots=True)
class SkippedClaims:
    """Counts the live processes of one report that the tower does not watch."""

    _found: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)
    """Their pids by reason, job and owner."""

    def note(self, label: str, claim: Claim, job: Job | None) -> None:
        """Count the process of a claim on a rank of a job, unless it has the rank or has ended."""
        vitals = claim.vitals
        record = job.generation.ranks.get(vitals.rank) if job is not None else None
        if vitals.ended is None and (record is None or record.key != claim.key):
            key = find_reason(claim, job), label, vitals.owner
            self._found.setdefault(key, []).append(claim.key.pid)

    def list(self) -> tuple[UnwatchedRanks, ...]:
        """Return the processes by reason and job, the largest groups first."""
        most_first = sorted(self._found.items(), key=lambda item: -len(item[1]))
        found = [_describe(*key, pids) for key, pids in most_first[: MAX_UNWATCHED - 1]]
        rest = [pid for _, pids in most_first[MAX_UNWATCHED - 1 :] for pid in pids]
        return (*found, _describe(OTHER_REASONS, "", "", rest)) if rest else tuple(found)


def find_reason(claim: Claim, job: Job | None) -> str:
    """Return why the process of a claim is not watched."""
    if job is None:
        return OVER_LIMIT
    if claim.key in job.generation.rivals:
        return SECOND_CLAIM
    if claim.key in job.retired:
        return EARLIER_ATTEMPT
    is_refused = job.attempts.explain_refusal(claim.now, claim.policy.silence_s)
    return MANY_ATTEMPTS if is_refused else OVER_LIMIT


def label_unwatched(
    report: Report, find_label: Callable[[str, str], str]
) -> Iterator[UnwatchedRanks]:
    """Yield what an agent does not watch. `find_label` returns the label of a name and an owner."""
    for each in report.unwatched:
        yield UnwatchedRanks(
            reason=each.reason,
            job=find_label(each.job, each.owner) if each.job else "",
            owner=each.owner,
            count=each.count,
            pids=each.pids,
            text=each.text,
        )


def _describe(reason: str, job: str, owner: str, pids: list[int]) -> UnwatchedRanks:
    number = "1 process is" if len(pids) == 1 else f"{len(pids)} processes are"
    why = TEXTS[reason].format(job=f"job {job}")
    return UnwatchedRanks(
        reason=reason,
        job=job,
        owner=owner,
        count=len(pids),
        pids=tuple(sorted(pids)[:MAX_UNWATCHED_PIDS]),
        text=f"{number} not watched: {why}.",
    )
