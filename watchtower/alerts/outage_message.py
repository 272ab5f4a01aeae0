"""Writes the message of an outage: three lines about all jobs that hang on one mount, node or
address.

It has the same limits as the message of one incident: names are cleaned and cut, and each line
begins with our own words.
"""

from __future__ import annotations

from dataclasses import dataclass

from watchtower.alerts.message import AlertFacts, AlertState, write_whom_to_call
from watchtower.writing.text import clean, format_count

MAX_CAUSE, MAX_JOB = 80, 32
"""Most characters of the shared cause and of the name of a job."""

MAX_URL = 200
"""A longer URL is left out: a URL that is cut leads elsewhere."""

MAX_NAMED = 4
"""Jobs that the message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageFacts:
    """The known facts of an outage."""

    outage: str = ""
    """Its id."""
    cause: str
    """"mount nfs1:/data"."""
    jobs: tuple[str, ...]
    """Names of the first jobs. The owners take turns."""
    job_count: int
    open_count: int
    """Jobs that still hang."""
    recovered_count: int
    """Jobs that make steps again."""
    acked_count: int
    """Acknowledged incidents among the open ones."""
    ranks: int
    """Ranks of the jobs that still hang; of all jobs if the outage is over."""
    gpus: int | None
    """The same in GPUs, only if those of each job were measured."""
    are_all_counted: bool
    """Whether the size of each of these jobs is known."""
    domain: str
    state: AlertState
    url: str


def write_outage(facts: OutageFacts) -> tuple[str, ...]:
    """Return three lines. None is longer than the lines about one incident."""
    cause, names = clean(facts.cause, MAX_CAUSE), _name_jobs(facts)
    call = write_whom_to_call(AlertFacts(domain=facts.domain))
    details = "Details: watchtower outages"
    if facts.state is AlertState.OPEN:
        details = f"Acknowledge: watchtower ack --outage {facts.outage} | {details}"
    if facts.url and len(facts.url) <= MAX_URL:
        details += f" | {facts.url}"
    if facts.open_count:
        tag = "OUTAGE, acknowledged" if facts.state is AlertState.ACKED else "OUTAGE"
        first = f"[{tag}] {cause}: {_write_open(facts)}, {_write_size(facts)}"
        return first, f"{call} {names} hang on it. {_write_acks(facts)}".rstrip(), details
    first = f"[OUTAGE OVER] {cause}: {_write_outcome(facts)}, {_write_size(facts)}"
    return (
        first,
        f"It was the shared cause of {names}. If it happens again: {call[:1].lower()}{call[1:]}",
        details,
    )


def _write_open(facts: OutageFacts) -> str:
    verb = "is" if facts.open_count == 1 else "are"
    if facts.open_count == facts.job_count:
        return f"{format_count(facts.job_count, 'job')} {verb} hung"
    return f"{facts.open_count} of {format_count(facts.job_count, 'job')} {verb} still hung"


def _write_outcome(facts: OutageFacts) -> str:
    jobs = format_count(facts.job_count, "job")
    if facts.recovered_count == facts.job_count:
        return f"all {jobs} make steps again"
    return f"the incidents of {jobs} are closed, {facts.recovered_count} make steps again"


def _write_size(facts: OutageFacts) -> str:
    number, unit = (facts.gpus, "GPU") if facts.gpus else (facts.ranks, "rank")
    more = "" if facts.are_all_counted else "at least "
    return f"{more}{number:,} {unit}{'' if number == 1 else 's'}"


def _write_acks(facts: OutageFacts) -> str:
    if not 0 < facts.acked_count < facts.open_count:
        return ""
    return f"{facts.acked_count} of {facts.open_count} incidents are acknowledged."


def _name_jobs(facts: OutageFacts) -> str:
    names = ", ".join(clean(job, MAX_JOB) or "unnamed job" for job in facts.jobs[:MAX_NAMED])
    more = facts.job_count - min(len(facts.jobs), MAX_NAMED)
    return f"{names} and {more} more" if more else names
