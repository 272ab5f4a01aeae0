"""The detector: is this job stepping, starting, stalled, suspended, ended, or without reports?

It checks one attempt at one moment, and returns a condition with its reason. `incidents` decides
about the consequences: a suspicion, an incident, an alert.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from watchtower.evidence.gpus import FAULTS, is_fault
from watchtower.evidence.observed import Observed
from watchtower.jobs.agents import NodeReport, find_last_report, find_last_reports
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.condition import (
    Condition,
    ConditionKind,
    Stall,
    Why,
    explain_end,
    explain_loss,
    explain_stall,
    find_end,
)
from watchtower.jobs.no_heartbeat import (
    change_limit_s,
    has_changed,
    has_no_heartbeat,
    unchanged_since,
    works_without_heartbeats,
)
from watchtower.jobs.pace import Pauses
from watchtower.jobs.ranks import STILL_AFTER_S, RankRecord, Reporter, has_died
from watchtower.jobs.samples import Samples
from watchtower.jobs.starting import judge_launchers
from watchtower.policy import Policy
from watchtower.wire.report import ProcessState
from watchtower.writing.ranksets import name_ranks
from watchtower.writing.text import format_duration, write_slower

FATAL = FAULTS
"""Families of observations that stop a rank at once. The end of a process is a death, which the
detector sees by itself."""


MAY_BE_STILL = frozenset(
    {
        ConditionKind.STEPPING,
        ConditionKind.STARTING,
        ConditionKind.STEPLESS,
        ConditionKind.UNWATCHED,
    }
)
"""Conditions in which evidence may show a stall before the time of a step is over."""

EARLY = 0.6
"""Part of the time of a step after which the ranks are checked."""

ALL_MOVE = 1.5
"""Factor on `early_check_s` while a rank moves: one that waits may use CPU, too."""


def find_fatal_errors(
    records: Sequence[RankRecord], nodes: Mapping[str, NodeReport], now: float
) -> dict[int, float]:
    """Return when an error occurred that stops a rank, by rank. The first one counts."""
    # Most nodes have observations and none of these: a large job has thousands of nodes.
    observed: dict[str, Observed] = {}
    for name in {record.key.node for record in records}:
        node = nodes.get(name)
        if node and any(each.name.startswith(FATAL) for each in node.observations.items):
            observed[name] = Observed(node.observations.aged(now))
    found: dict[int, float] = {}
    for record in records if observed else ():
        seen = observed.get(record.key.node)
        about = seen.about(record.key.pid, FATAL) if seen is not None else ()
        if ages := [each.age_s for each in about if is_fault(each)]:
            found[record.vitals.rank] = now - max(ages)
    return found


@dataclass(frozen=True, slots=True)
class Detector:
    """Returns the conditions of attempts, by one policy."""

    policy: Policy

    def judge(
        self,
        attempt: Attempt,
        nodes: Mapping[str, NodeReport],
        pauses: Pauses,
        now: float,
        samples: Samples | None = None,
    ) -> Condition:
        """Return what the job is doing at `now`. `samples`: for a job without heartbeats."""
        samples = samples or Samples()
        live = list(attempt.live())
        if not live:
            return self._judge_without_live(attempt, nodes, now)
        reporting = self.find_reporting(live, nodes, now)
        if not reporting:
            return self._judge_unreported(attempt, live, nodes, now)
        if all(r.vitals.state is ProcessState.STOPPED for r in reporting):
            return Condition(kind=ConditionKind.SUSPENDED, reason="every rank is stopped (SIGSTOP)")
        early = self._find_early(attempt, reporting, nodes, pauses, now)
        stall = (
            self._find_death(attempt, reporting, now)
            or self._find_fatal_error(attempt, reporting, nodes, now)
            or self._find_startup_stall(attempt, reporting, samples, now)
            or (early and self._find_overdue(attempt, reporting, nodes, pauses, now))
        )
        if stall is None and (same := self._find_unchanged(attempt, reporting, samples, now)):
            is_new = now <= attempt.set_up_by(self.policy)
            early, stall = (same, None) if is_new else (early, same)
        if stall is not None:
            return Condition(
                kind=ConditionKind.STALLED,
                reason=explain_stall(stall, attempt.step(), now),
                stall=stall,
            )
        if len(reporting) < len(live):
            reported = {record.vitals.rank for record in reporting}
            lost = [record for record in live if record.vitals.rank not in reported]
            reason = explain_loss(lost, self._find_silent(lost, nodes, now))
            return Condition(kind=ConditionKind.LOST, reason=reason)
        condition = self._judge_progress(attempt, reporting, samples, now)
        is_same = early is not None and early.why is Why.UNCHANGED
        if is_same and condition.kind is ConditionKind.CHANGING:
            condition = replace(condition, kind=ConditionKind.UNWATCHED)  # it changed before
        return replace(condition, stall=early) if condition.kind in MAY_BE_STILL else condition

    def is_silent(self, reporter: Reporter | None, now: float) -> bool:
        """Return whether an agent has not reported in time, or is not known."""
        return reporter is None or now > reporter.silent_from

    def _find_silent(
        self, records: Iterable[RankRecord], nodes: Mapping[str, NodeReport], now: float
    ) -> set[str]:
        """Return the nodes of these ranks whose agent stopped reporting."""
        last = find_last_reports(records, nodes)
        return {name for name, reporter in last.items() if self.is_silent(reporter, now)}

    def find_reporting(
        self, records: Iterable[RankRecord], nodes: Mapping[str, NodeReport], now: float
    ) -> list[RankRecord]:
        """Return the ranks that an agent reports: it is not silent, and reports this rank."""
        # Computed once per report, not per rank: a job has thousands of ranks on few nodes.
        reporting_from: dict[int, float] = {}
        reporting = []
        last, limit = None, float("inf")
        for record in records:
            if record.reporter is not last:
                last, key = record.reporter, id(record.reporter)
                if key not in reporting_from:
                    limit = self._reporting_from(find_last_report(record, nodes), now)
                    reporting_from[key] = limit
                limit = reporting_from[key]
            if record.seen_at >= limit:
                reporting.append(record)
        return reporting

    def _reporting_from(self, reporter: Reporter | None, now: float) -> float:
        """Return the time of the oldest report that still counts for a rank of this agent."""
        if reporter is None or self.is_silent(reporter, now):
            return float("inf")
        # One interval more: a rank is missing only from the first report without it.
        return reporter.seen_at - self.policy.vanish_s - reporter.interval_s

    def deadline_s(self, attempt: Attempt, phase: str, pauses: Pauses) -> float | None:
        """Return the seconds without a beat after which a rank in `phase` is suspect.

        None while they are not known.
        """
        floor, factor = self.policy.suspect_floor_s, self.policy.suspect_factor
        pace = attempt.paces.get(phase)
        if pace is not None and pace.is_learned:
            again = self.policy.learned_factor * pace.pause_s
            return max(floor, factor * pace.typical_s, again)
        if not phase:
            return None
        if learned := pauses.longest_in(phase):
            return max(floor, min(factor * learned, self.policy.learned_max_s))
        return self.policy.phase_patience_s

    def step_limit_s(self, attempt: Attempt) -> float:
        """Return the seconds without a step after which an attempt is not healthy."""
        typical_s = max((pace.typical_s for pace in attempt.paces.values()), default=0.0)
        return max(self.policy.no_step_floor_s, self.policy.no_step_factor * typical_s)

    def _judge_unreported(
        self, attempt: Attempt, live: list[RankRecord], nodes: Mapping[str, NodeReport], now: float
    ) -> Condition:
        """Return the condition of a job without a live rank that is reported."""
        silent = self._find_silent(live, nodes, now)
        if any(record.key.node not in silent for record in live):
            return Condition(kind=ConditionKind.LOST, reason=explain_loss(live, silent))
        if self._did_reporting_ranks_die(attempt, nodes, now):
            return self._judge_end(attempt, now)
        return Condition(kind=ConditionKind.LOST, reason="no agent of this job reports")

    def _did_reporting_ranks_die(
        self, attempt: Attempt, nodes: Mapping[str, NodeReport], now: float
    ) -> bool:
        """Return whether ranks died on nodes that still report, and no other node reports.

        The job counts as ended then.
        """
        ended = [record for record in attempt.ranks.values() if not record.is_live]
        last = find_last_reports(ended, nodes).values()
        reporting = any(not self.is_silent(reporter, now) for reporter in last)
        return reporting and self._find_death(attempt, list(attempt.live()), now) is not None

    def _judge_without_live(
        self, attempt: Attempt, nodes: Mapping[str, NodeReport], now: float
    ) -> Condition:
        if not attempt.ranks and attempt.launchers.has_waited:
            return judge_launchers(attempt, nodes, self.policy, now)
        return self._judge_end(attempt, now)

    def _judge_end(self, attempt: Attempt, now: float) -> Condition:
        last = max(
            (r.ended_at for r in attempt.ranks.values() if r.ended_at is not None), default=now
        )
        if now - last < self.policy.settle_s:
            return Condition(kind=ConditionKind.ENDING, reason="the last rank has just ended")
        end = find_end(attempt)
        return Condition(
            kind=ConditionKind.ENDED, reason=explain_end(end), is_end_unseen=end.is_unseen
        )

    def _judge_progress(
        self, attempt: Attempt, reporting: list[RankRecord], samples: Samples, now: float
    ) -> Condition:
        if has_no_heartbeat(attempt):
            condition = self._judge_no_heartbeat(attempt, samples, now)
        else:
            condition = self._judge_pace(attempt)
        if condition.kind is ConditionKind.UNWATCHED:
            return self._find_long_unchanged(attempt, samples, now) or condition
        if condition.kind in (ConditionKind.STEPPING, ConditionKind.STARTING):
            return self._find_stepless(attempt, reporting, now) or condition
        return condition

    def _judge_pace(self, attempt: Attempt) -> Condition:
        if not attempt.is_paced:
            text = "too few steps were seen to know how long a step takes"
            text = text if attempt.step() >= 0 else "the first steps are not done yet"
            return Condition(kind=ConditionKind.STARTING, reason=text)
        slowness = attempt.slowness
        if slowness.most >= self.policy.slow_factor:
            text = write_slower(slowness.slowdown, slowness.present_s)
            return Condition(kind=ConditionKind.SLOW, reason=text)
        return Condition(kind=ConditionKind.STEPPING, reason="its steps take the usual time")

    def _find_stepless(
        self, attempt: Attempt, reporting: list[RankRecord], now: float
    ) -> Condition | None:
        """Return a condition if the last step is too long ago and no rank moves in a phase."""
        limit_s = self.step_limit_s(attempt)
        if now - max(attempt.began_at, attempt.resumed_at) <= limit_s:
            return None
        if any(_has_stepped(r) and now - r.progressed_at() <= limit_s for r in reporting):
            return None
        if any(self._is_in_moving_phase(r, now) for r in reporting):
            return None
        since = max(
            (self._last_beat(r) for r in reporting if _has_stepped(r)), default=attempt.began_at
        )
        first = "" if attempt.step() >= 0 else "first "
        return Condition(
            kind=ConditionKind.STEPLESS, reason=f"no {first}step for {format_duration(now - since)}"
        )

    def _find_long_unchanged(
        self, attempt: Attempt, samples: Samples, now: float
    ) -> Condition | None:
        """Return a condition if the samples of a job without heartbeats did not change for long."""
        still_s = now - max(attempt.began_at, attempt.resumed_at, samples.since)
        if still_s <= change_limit_s(samples, self.policy):
            return None
        still = format_duration(still_s)
        reason = f"no rank has heartbeats, and no stack sample has changed for {still}"
        return Condition(kind=ConditionKind.STEPLESS, reason=reason)

    def _is_in_moving_phase(self, record: RankRecord, now: float) -> bool:
        beat = record.vitals.beat
        is_moving = now - record.moved_at() <= self.policy.phase_still_s
        return bool(beat and beat.phase) and is_moving

    def _judge_no_heartbeat(self, attempt: Attempt, samples: Samples, now: float) -> Condition:
        has_page = any(r.vitals.beat for r in attempt.ranks.values())
        if has_page and now <= attempt.set_up_by(self.policy):
            return Condition(kind=ConditionKind.STARTING, reason="the first steps are not done yet")
        every_s = f"{self.policy.no_heartbeat_sample_s:g} s"
        what = "has heartbeats; is beat() called?" if has_page else "has a heartbeat file"
        reason = f"checked by stack samples every {every_s}: no rank {what}"
        if samples.is_blind:
            text = f"not watched: no stack can be read (see /readyz), and no rank {what}"
            return Condition(kind=ConditionKind.BLIND, reason=text)
        if has_changed(attempt, samples, self.policy, now):
            return Condition(kind=ConditionKind.CHANGING, reason=reason)
        servers = [
            r.vitals.rank
            for r in attempt.live()
            if samples.activity_of(r.vitals.rank).waits_for_client
        ]
        if servers:
            waits = "waits" if len(servers) == 1 else "wait"
            text = f"{name_ranks(servers)} {waits} for clients: the job has nothing to do"
            return Condition(kind=ConditionKind.IDLE, reason=text)
        return Condition(kind=ConditionKind.UNWATCHED, reason=reason)

    def _find_unchanged(
        self, attempt: Attempt, reporting: list[RankRecord], samples: Samples, now: float
    ) -> Stall | None:
        if not has_no_heartbeat(attempt):
            return None
        since = unchanged_since(attempt, reporting, samples, self.policy, now)
        if since is None:
            return None
        ranks = frozenset(record.vitals.rank for record in reporting)
        return Stall(why=Why.UNCHANGED, since=since, ranks=ranks)

    def _find_death(
        self, attempt: Attempt, reporting: list[RankRecord], now: float
    ) -> Stall | None:
        dead = {
            rank: record.ended_at
            for rank, record in attempt.ranks.items()
            if record.ended_at is not None
            and now - record.ended_at >= self.policy.settle_s
            and has_died(record)
        }
        return self._stall_since(dead, Why.DEATH, attempt, reporting)

    def _find_fatal_error(
        self,
        attempt: Attempt,
        reporting: list[RankRecord],
        nodes: Mapping[str, NodeReport],
        now: float,
    ) -> Stall | None:
        settle_s = max(self.policy.settle_s, 2 * attempt.pace("").typical_s)
        errors = find_fatal_errors(reporting, nodes, now)
        late = {rank: at for rank, at in errors.items() if now - at >= settle_s}
        return self._stall_since(late, Why.ERROR, attempt, reporting)

    def _stall_since(
        self, found: Mapping[int, float], why: Why, attempt: Attempt, reporting: list[RankRecord]
    ) -> Stall | None:
        """Return a stall of ranks that died or failed at these times; None if the job continues.

        A step that began afterwards shows that the others continue without that rank.
        """
        if not found:
            return None
        patience = max(self.policy.settle_s, 2 * attempt.pace("").typical_s)
        last_step = max((self._last_beat(r) for r in reporting), default=float("-inf"))
        stopped = {rank: at for rank, at in found.items() if last_step <= at + patience}
        if not stopped:
            return None
        return Stall(why=why, since=min(stopped.values()), ranks=frozenset(stopped))

    def _find_startup_stall(
        self, attempt: Attempt, reporting: list[RankRecord], samples: Samples, now: float
    ) -> Stall | None:
        watched = [] if attempt.is_paced else [r for r in reporting if r.vitals.beat is not None]
        if not watched:
            return None
        stepped = [r for r in watched if _has_stepped(r)]
        began = max(attempt.began_at, attempt.resumed_at)
        since, late_at = began, attempt.set_up_by(self.policy)
        if stepped:
            # The job hung before it was watched. Its heartbeat files contain the time of the last
            # step. Wait for the settle time, because some nodes may not have reported yet.
            since = max(attempt.resumed_at, *(r.progressed_at() for r in stepped))
            if now - began <= self.policy.settle_s:
                return None
            grace_s = self.policy.startup_grace_s
            if any(r.vitals.beat and r.vitals.beat.phase for r in stepped):
                grace_s = max(grace_s, self.policy.phase_patience_s)
            late_at = since + grace_s
        if now <= late_at:
            return None
        if has_no_heartbeat(attempt) and works_without_heartbeats(attempt, samples, self.policy):
            return None
        late = {r.vitals.rank for r in watched if not _has_stepped(r)}
        late.update(attempt.missing_ranks())
        if not late:
            late = {r.vitals.rank for r in watched}
        return Stall(why=Why.STARTUP, since=since, ranks=frozenset(late))

    def _find_early(
        self,
        attempt: Attempt,
        reporting: list[RankRecord],
        nodes: Mapping[str, NodeReport],
        pauses: Pauses,
        now: float,
    ) -> Stall | None:
        """Return a stall that is too short to make a job suspect, but worth a check."""
        if attempt.is_paced:
            return self._find_overdue(attempt, reporting, nodes, pauses, now, early=True)
        watched = [record for record in reporting if record.vitals.beat is not None]
        if len(watched) < 2 or now - attempt.began_at <= self.policy.settle_s:
            return None  # some nodes may not have reported yet
        since = max(attempt.resumed_at, *(record.progressed_at() for record in watched))
        limit_s = self.policy.early_check_s
        if min(record.moved_at() for record in watched) > now - STILL_AFTER_S:
            limit_s *= ALL_MOVE
        if now - since <= limit_s:
            return None
        ranks = frozenset(record.vitals.rank for record in watched)
        return Stall(why=Why.STARTUP, since=since, ranks=ranks)

    def _find_overdue(
        self,
        attempt: Attempt,
        reporting: list[RankRecord],
        nodes: Mapping[str, NodeReport],
        pauses: Pauses,
        now: float,
        *,
        early: bool = False,
    ) -> Stall | None:
        """Return a stall of the ranks whose time is over; `early`: of which a part is over."""
        late: dict[int, float] = {}
        deadlines: dict[str, float | None] = {}
        since_resumed_s = now - attempt.resumed_at
        still_s = self.policy.early_check_s if early else self.policy.phase_still_s
        for record in reporting:
            beat = record.vitals.beat
            if beat is None or beat.step < 0:
                continue
            if beat.phase not in deadlines:
                deadline = self.deadline_s(attempt, beat.phase, pauses)
                part = EARLY if early else 1.0
                deadlines[beat.phase] = None if deadline is None else part * deadline
            deadline = deadlines[beat.phase]
            # Fast path without a call: it skips nearly all of thousands of stepping ranks.
            if deadline is None or beat.age_s + now - record.seen_at <= min(deadline, still_s):
                continue
            age = min(
                record.age_s(now, nodes[record.key.node].interval_s),
                self._since_phase_s(record, now),
                since_resumed_s,
            )
            is_still = min(now - record.moved_at(), age) > still_s
            is_early = early and age > ALL_MOVE * still_s
            if age > deadline or (beat.phase and (is_still or is_early)):
                late[record.vitals.rank] = now - age
        if not late:
            return None
        return Stall(why=Why.OVERDUE, since=min(late.values()), ranks=frozenset(late))

    def _since_phase_s(self, record: RankRecord, now: float) -> float:
        """Return the seconds since a rank last entered or left a phase.

        A rank that does so again and again makes no progress by it: then these are its seconds
        outside phases.
        """
        since_s, outside_s = now - record.phase_changed_at, record.outside_s
        return max(since_s, outside_s) if outside_s > self.policy.phase_patience_s else since_s

    @staticmethod
    def _last_beat(record: RankRecord) -> float:
        beat = record.vitals.beat
        return float("-inf") if beat is None else record.seen_at - beat.age_s


def _has_stepped(record: RankRecord) -> bool:
    return record.vitals.beat is not None and record.vitals.beat.step >= 0
