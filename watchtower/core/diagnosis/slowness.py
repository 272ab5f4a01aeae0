"""What is said of a job that steps slowly: who sets the pace, or that everybody is slow alike."""

from __future__ import annotations

from watchtower.core.diagnosis.finding import Finding, Tier
from watchtower.core.diagnosis.picture import Picture
from watchtower.core.diagnosis.rules.straggler import MIN_LOOKS
from watchtower.core.diagnosis.weighing import weigh
from watchtower.core.phrases import say_slower
from watchtower.core.ranksets import count_ranks, format_ranks
from watchtower.wire.verdict import Cause, Evidence


def explain_slow_job(picture: Picture) -> Finding:
    """Write the finding that the job is slow and no rank is known to be the reason."""
    counted = [item for item in picture.live if item.evidence.looks >= MIN_LOOKS]
    slower = say_slower(picture.case.slowdown, picture.case.typical_step_s)
    evidence = [Evidence(source="heartbeat", text=slower, weight=0.9)]
    if counted:
        text = f"no rank waits much less than the others ({count_ranks(len(counted))} looked at)"
        ranks = format_ranks(item.rank for item in counted)
        evidence.append(Evidence(source="stacks", text=text, ranks=ranks, weight=0.0))
    return Finding(
        cause=Cause.JOB_SLOW,
        tier=Tier.PROGRESS,
        confidence=weigh(evidence),
        suspects=(),
        summary=f"{slower}; no rank stands out" if counted else slower,
        evidence=tuple(evidence),
        next_steps=("look at what all ranks share: storage, network, batches that became longer",),
    )
