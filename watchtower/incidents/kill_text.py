"""Writes what a kill of a stuck job loses, and whether it works. Pure.

Pages, alerts, texts of verdicts and post-mortems take their words from here. The text calls no kill
safe: it names what is known about the evidence, the steps and the processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from watchtower.diagnosis.causes import CAUSES, IN_DRIVER
from watchtower.incidents.incident import Incident
from watchtower.wire.verdict import Domain, KillLoss, Verdict
from watchtower.writing.amounts import (
    find_count,
    find_moment,
    find_seconds,
    find_step,
    format_short,
)
from watchtower.writing.text import count_ranks, format_count


@dataclass(frozen=True, slots=True, kw_only=True)
class KillFacts:
    """The known facts of a stuck job. None or empty: not known."""

    status: str = ""
    """"hung", "never_started", "slow"."""
    ranks: int | None = None
    """World size."""
    dumps_in: int | None = None
    """Reporting ranks of which a dump of this stall has arrived."""
    dumps_wanted: int | None = None
    """Ranks that report."""
    step: int | None = None
    checkpoint_step: int | None = None
    """Step of the last complete checkpoint."""
    step_s: float | None = None
    """Seconds that a step usually takes."""
    rank: int | None = None
    """The first suspect."""
    suspects: int | None = None
    """Number of suspects."""
    cause: str = ""
    """Cause of the verdict."""
    domain: str = ""
    """Whom to call, such as "storage" or "user_code"."""
    timeout_s: float | None = None
    """The job's own timeout of the collective in which its ranks wait."""
    timeout_at: float | None = None
    """UNIX seconds at which it expires."""


NEVER_STARTED = "never_started"
"""Status of a job of which not all ranks were started."""

CLOCK_S = 30.0
"""Seconds by which the end of a timeout may seem to move, because a clock is inexact. A message
must not change for that."""


_OUTLIVE = {each.cause.value: each.outlives_kill for each in CAUSES if each.outlives_kill}

NO_CHECKPOINT = "The lost steps are not known: no checkpoint was seen."


def gather_kill_facts(incident: Incident) -> KillFacts:
    """Return what is known of the job of an incident."""
    verdict, job = incident.verdict, incident.facts
    return KillFacts(
        status=incident.identity.kind.value,
        ranks=job.ranks,
        dumps_in=job.dumps_in,
        dumps_wanted=job.dumps_wanted,
        step=verdict.step,
        checkpoint_step=job.checkpoint_step,
        step_s=job.step_s,
        rank=verdict.suspects[0].rank if verdict.suspects else None,
        suspects=len(verdict.suspects),
        cause=verdict.cause.value if verdict.cause else "",
        domain=(verdict.domain or incident.identity.domain).value,
        timeout_s=verdict.collective_timeout_s,
        timeout_at=job.timeout_at,
    )


def find_timeout_at(verdict: Verdict, as_of: float, before: float | None) -> float | None:
    """Return the UNIX seconds at which the job's own timeout expires; None if it has none.

    `as_of`: the time of the verdict. `before`: the result for the verdict before.
    """
    if verdict.collective_timeout_s is None:
        return None
    at = as_of - verdict.stalled_for_s + verdict.collective_timeout_s
    return before if before is not None and abs(at - before) < CLOCK_S else at


def find_kill_loss(facts: KillFacts, now: float | None) -> KillLoss:
    """Return what a kill of the job loses now.

    `now`: UNIX seconds. None if the text is read later, as a message is: it must stay true.
    """
    return KillLoss(
        loses_evidence=_loses_evidence(facts),
        lost_steps=_count_steps(facts),
        evidence_text=_write_evidence(facts),
        steps_text=_write_steps(facts),
        process_text=_write_held(facts),
        timeout_text=_write_timeout(facts, now),
    )


def write_steps_lost(facts: KillFacts) -> str:
    """Return what the end of the job has lost, in the past tense."""
    lost, checkpoint = _count_steps(facts), find_step(facts.checkpoint_step)
    if facts.status == NEVER_STARTED:
        return "No step was lost: there was none."
    if checkpoint is None:
        return NO_CHECKPOINT
    if lost is None:
        return f"All steps after the checkpoint at step {checkpoint} were lost."
    if not lost:
        return f"No step was lost after the checkpoint seen at step {checkpoint}."
    since = f"{_write_lost(lost, facts)} since the checkpoint seen at step {checkpoint}"
    return f"Up to {since} were lost unless the job saved them later."


def _loses_evidence(facts: KillFacts) -> bool | None:
    wanted, arrived = find_count(facts.dumps_wanted), find_count(facts.dumps_in)
    return None if not wanted or arrived is None else arrived < wanted


def _write_evidence(facts: KillFacts) -> str:
    wanted, arrived = find_count(facts.dumps_wanted), find_count(facts.dumps_in)
    if not wanted or arrived is None:
        return "It is not known whether a kill loses evidence."
    ranks = count_ranks(wanted)
    whole = ranks if wanted == find_count(facts.ranks) else f"the {ranks} that agents report"
    stacks = f"{min(arrived, wanted)} of {whole}"
    if arrived < wanted:
        return f"A kill now loses evidence (stacks of only {stacks} are collected)."
    return f"A kill loses no evidence (stacks of {stacks} are collected)."


def _count_steps(facts: KillFacts) -> int | None:
    step, checkpoint = find_step(facts.step), find_step(facts.checkpoint_step)
    if facts.status == NEVER_STARTED:
        return 0
    return None if step is None or checkpoint is None else max(0, step - checkpoint)


def _write_steps(facts: KillFacts) -> str:
    lost, checkpoint = _count_steps(facts), find_step(facts.checkpoint_step)
    if facts.status == NEVER_STARTED:
        return "It loses no steps."
    if checkpoint is None:
        return NO_CHECKPOINT
    if lost is None:
        return f"It loses the steps after the last checkpoint seen, at step {checkpoint}."
    # A checkpoint shorter than a report may not be seen.
    steps = f"up to {_write_lost(lost, facts)}" if lost else "no steps"
    return f"It loses {steps}: checkpoint at step {checkpoint}."


def _write_lost(lost: int, facts: KillFacts) -> str:
    usual_s = find_seconds(facts.step_s)
    training = f" ({format_short(lost * usual_s)} of training)" if usual_s else ""
    return f"{format_count(lost, 'step')}{training}"


def _write_held(facts: KillFacts) -> str:
    """Return why a signal may not end the suspect; empty if nothing is known against it."""
    rank, held = find_count(facts.rank), _OUTLIVE.get(facts.cause)
    if rank is None or held is None:
        return ""
    what, until = IN_DRIVER if facts.domain == Domain.GPU.value else held
    if (facts.suspects or 0) > 1:
        return f"The suspects are {what}: a kill may not end them until their {until}."
    return f"Rank {rank} is {what}: a kill may not end it until its {until}."


def _write_timeout(facts: KillFacts, now: float | None) -> str:
    """Return when the job's own timeout ends it, or when it should have."""
    timeout_s, at = find_seconds(facts.timeout_s), find_moment(facts.timeout_at)
    if not timeout_s or at is None:
        return ""
    verb = "expires" if now is None else "should end it" if now < at else "should have ended it"
    return (
        f"The job's own timeout ({format_short(timeout_s)}) {verb} at about {_write_at(at, now)}."
    )


def _write_at(at: float, now: float | None) -> str:
    """Return "22:13 UTC", with the date unless it is that of `now`."""
    moment = datetime.fromtimestamp(at, timezone.utc)
    is_today = now is not None and datetime.fromtimestamp(now, timezone.utc).date() == moment.date()
    return f"{moment:%H:%M} UTC" if is_today else f"{moment:%Y-%m-%d %H:%M} UTC"
