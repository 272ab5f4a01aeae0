"""Claims: an agent reports a process as a rank of a job. Is it that rank, and of which attempt?

The process may be:
* the rank itself
* its successor after a restart
* a survivor of a restart
* the same process on a node that was renamed
* another process that runs beside the rank and inherited its environment
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field

from watchtower.fleet.nodes import NodeRecord
from watchtower.jobs.agents import UnwatchedRanks
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.keeper import Keeper
from watchtower.jobs.ranks import LaunchKey, ProcessKey, RankRecord, has_died
from watchtower.policy import Policy
from watchtower.wire.report import (
    MAX_UNWATCHED,
    MAX_UNWATCHED_PIDS,
    OTHER_REASONS,
    OVER_LIMIT,
    RankVitals,
    Report,
)


@dataclass(frozen=True, slots=True)
class Claim:
    """One process of one report, with everything that is needed to judge its claim."""

    key: ProcessKey
    vitals: RankVitals
    reported: Set[ProcessKey]
    """Every process of that report."""
    nodes: Mapping[str, NodeRecord]
    policy: Policy
    now: float

    def goes_on(self, retired_at: float) -> bool:
        """Return whether a process of the previous attempt is part of this attempt, too.

        Most launchers end every rank when one rank restarts. Some replace only that one. A process
        that makes steps, or is still there after `vanish_s`, was not ended.
        """
        if self.vitals.ended is not None:
            return False
        stepped = self.vitals.beat is not None and self.vitals.beat.advanced > 0
        return stepped or self.now - retired_at > self.policy.vanish_s

    def comes_after(self, attempt: Attempt) -> bool:
        """Return whether a rank not seen before is of the next attempt: this one has ended.

        A young attempt with a crashed rank has not ended, because its other ranks may not have
        been reported yet. They have its world size.
        """
        if not attempt.ranks or self.key in attempt.known or any(True for _ in attempt.live()):
            return False
        if self.vitals.world_size not in (None, attempt.world_size):
            return True
        is_young = self.now - attempt.began_at < self.policy.startup_grace_s
        return not (is_young and any(has_died(record) for record in attempt.ranks.values()))

    def followed(self, attempt: Attempt) -> bool:
        """Return whether this ended process is of the next attempt, which no report showed.

        Its agent found it after all ranks of this attempt had ended.
        """
        found_at = self.now - self.vitals.found_age_s
        ends = [record.ended_at for record in attempt.ranks.values()]
        return bool(ends) and all(at is not None and at < found_at for at in ends)

    def is_history(self, attempt: Attempt) -> bool:
        """Return whether this is an ended process of an earlier attempt.

        The tower was restarted, and knows the processes of the present attempt.
        """
        return (
            self.vitals.ended is not None and bool(attempt.known) and self.key not in attempt.known
        )

    def is_renamed(self, record: RankRecord) -> bool:
        """Return whether this is the process of the record, on a node that was renamed."""
        same = (record.key.pid, record.key.start_time) == (self.key.pid, self.key.start_time)
        return same and not self.is_held(record)

    def is_rival(self, attempt: Attempt, record: RankRecord | None) -> bool:
        """Return whether this process claims a rank that belongs to another process.

        A process that runs beside a rank inherits its environment, and with it the rank. But only
        training code makes a heartbeat page; a restarted rank makes it after its imports. A process
        that a launcher started has precedence over one that was started by hand.
        """
        before = [record] if record is not None else list(attempt.ranks.values())
        if self._is_outside(attempt, before):
            return True
        if self.vitals.beat is None and any(r.vitals.beat is not None for r in before):
            return True
        return record is not None and self.is_held(record)

    def takes_over(self, record: RankRecord) -> bool:
        """Return whether this process replaces the process that holds the rank now.

        It does if a launcher started it, or it has a heartbeat page, and the holder has neither.
        Such a holder may be left over from an earlier run.
        """
        comes_before = _origin(self.vitals) > _origin(record.vitals)
        return comes_before and self.is_held(record)

    def is_over(self, retired: Container[ProcessKey], *, joins: bool) -> bool:
        """Return whether this process has ended and will hold no rank.

        `retired`: processes of earlier attempts of its job. `joins`: whether its launch is of
        this job. An ended launch may still be found to be of another job, if that is seen soon.
        """
        ended = self.vitals.ended
        if ended is None:
            return False
        return self.key in retired or (not joins and ended.age_s > self.policy.silence_s)

    @property
    def launch(self) -> LaunchKey:
        """Its launch."""
        return LaunchKey(self.vitals.job, self.vitals.owner, self.key.node, self.vitals.launch)

    def is_of_another_agent(self, record: RankRecord) -> bool:
        """Return whether the rank belongs to another agent than that of this report."""
        return self.nodes[self.key.node].is_held_by_another(record, self.now)

    def _is_outside(self, attempt: Attempt, before: Iterable[RankRecord]) -> bool:
        """Return whether a launcher started the ranks in `before`, but not this process.

        If all launched ranks have ended, the process may begin the next attempt, unless it was
        reported as a rival before.
        """
        if self.vitals.launched or not any(record.vitals.launched for record in before):
            return False
        return self.key in attempt.rivals or any(
            record.vitals.launched for record in attempt.live()
        )

    def is_held(self, record: RankRecord) -> bool:
        """Return whether the process that holds the rank is still there."""
        if not record.is_live:
            return False
        if record.key.node == self.key.node:
            return record.key in self.reported or self.is_of_another_agent(record)
        holder = self.nodes.get(record.key.node)
        return holder is not None and self.now - holder.seen_at <= self.policy.silence_s


def precedence(vitals: RankVitals) -> tuple[bool, bool, bool, int]:
    """Return a sort key for processes that claim the same rank: the lowest one gets the rank.

    The order is:
    1. Processes that a launcher started, ended or not. One started by hand cannot replace them.
    2. Live processes before ended ones.
    3. Processes with a heartbeat page before those without.
    4. Among live processes the oldest, because children of a rank are younger than the rank. Among
       ended processes the youngest.
    """
    has_ended = vitals.ended is not None
    age = -vitals.start_time if has_ended else vitals.start_time
    return not vitals.launched, has_ended, vitals.beat is None, age


def _origin(vitals: RankVitals) -> tuple[bool, bool]:
    return vitals.launched, vitals.beat is not None


SECOND_CLAIM = "second_claim"
EARLIER_ATTEMPT = "earlier_attempt"
MANY_ATTEMPTS = "many_attempts"

UNWATCHED_TEXTS = {
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

    def note(self, label: str, claim: Claim, job: Keeper | None) -> None:
        """Count the process of a claim on a rank of a job, unless it has the rank or has ended."""
        vitals = claim.vitals
        record = job.attempt.ranks.get(vitals.rank) if job is not None else None
        if vitals.ended is None and (record is None or record.key != claim.key):
            key = find_reason(claim, job), label, vitals.owner
            self._found.setdefault(key, []).append(claim.key.pid)

    def list(self) -> tuple[UnwatchedRanks, ...]:
        """Return the processes by reason and job, the largest groups first."""
        most_first = sorted(self._found.items(), key=lambda item: -len(item[1]))
        found = [_describe(*key, pids) for key, pids in most_first[: MAX_UNWATCHED - 1]]
        rest = [pid for _, pids in most_first[MAX_UNWATCHED - 1 :] for pid in pids]
        return (*found, _describe(OTHER_REASONS, "", "", rest)) if rest else tuple(found)


def find_reason(claim: Claim, job: Keeper | None) -> str:
    """Return why the process of a claim is not watched."""
    if job is None:
        return OVER_LIMIT
    if claim.key in job.attempt.rivals:
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
    why = UNWATCHED_TEXTS[reason].format(job=f"job {job}")
    return UnwatchedRanks(
        reason=reason,
        job=job,
        owner=owner,
        count=len(pids),
        pids=tuple(sorted(pids)[:MAX_UNWATCHED_PIDS]),
        text=f"{number} not watched: {why}.",
    )
