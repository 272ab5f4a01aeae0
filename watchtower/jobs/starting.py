"""The condition of a job that has launchers and no ranks yet."""

from __future__ import annotations

from collections.abc import Mapping

from watchtower.evidence.launchers import read_meeting
from watchtower.jobs.agents import NodeReport
from watchtower.jobs.attempt import Attempt
from watchtower.jobs.condition import Condition, ConditionKind, Stall, Why
from watchtower.policy import Policy


def judge_launchers(
    attempt: Attempt, nodes: Mapping[str, NodeReport], policy: Policy, now: float
) -> Condition:
    """Return whether the launchers may still meet. Each one that joins gives them more time."""
    launchers = attempt.launchers
    if launchers.left_at is not None:
        if now - launchers.left_at < policy.settle_s:
            text = "its launchers have just ended, or start their ranks"
            return Condition(kind=ConditionKind.ENDING, reason=text)
        text = "its launchers have ended, and no rank was seen"
        return Condition(kind=ConditionKind.ENDED, reason=text, is_end_unseen=True)
    silent = {
        name
        for name in launchers.waiting
        if name not in nodes or now > nodes[name].reporter.silent_from
    }
    seen = launchers.list_evidence(now, silent)
    if not seen:
        return Condition(kind=ConditionKind.LOST, reason="no agent of this job reports")
    meeting = read_meeting(seen)
    reason = meeting.describe()
    is_early = not meeting.is_judged or meeting.since_last_s <= policy.startup_grace_s
    if is_early and not meeting.ended:
        return Condition(kind=ConditionKind.STARTING, reason=reason)
    stall = Stall(why=Why.STARTUP, since=now - meeting.since_last_s, ranks=frozenset())
    return Condition(kind=ConditionKind.STALLED, reason=reason, stall=stall)
