"""One message for all incidents of an outage.

A message contains the alert of each incident, with its own labels, state and end. The first
incident is the key of the message at its destination. A message about a single incident is the
alert of that incident, so an incident that joins later edits the message that was sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from watchtower.alerts.alert import Alert
from watchtower.alerts.labels import AlertLinks
from watchtower.alerts.message import AlertFacts, AlertState, mark_drill, write_whom_to_call
from watchtower.service.sharing import by_turns
from watchtower.writing.text import clean, format_count, name_some

WORST_FIRST = ("critical", "warning", "info")
"""Severities. Any other one counts as worse."""

MAX_CAUSE, MAX_JOB = 80, 32
"""Most characters of the shared cause and of the name of a job."""

MAX_URL = 200
"""A longer URL is left out: a URL that is cut leads elsewhere."""

MAX_NAMED = 4
"""Jobs that the message names."""


class OutageAlerts:
    """The messages that are not over, for destinations that get one message for each outage."""

    def __init__(self, links: AlertLinks) -> None:
        self._links = links
        self._messages: dict[str, Alert] = {}
        """By key: the id of the first incident."""
        self._key_of: dict[str, str] = {}
        """The key of the message that contains an incident."""
        self._latest: dict[str, str] = {}
        """The key of the message that incidents of an outage join, while it is open."""

    def put(self, alert: Alert) -> Alert:
        """Return the message after a change of the alert of one incident.

        An incident joins the latest message of its outage, but not one that is acknowledged or
        over: a person would not be notified of an incident that was added to it.
        """
        if not alert.outage:
            return alert
        before = self._messages.get(self._key_of.get(alert.incident, ""))
        if before is None:
            before = self._find_open(alert.outage)
        message = join_alert(before, alert, self._links)
        self._forget(message) if message.is_over else self.restore(message)
        return message

    def find(self, alert: Alert) -> Alert | None:
        """Return the message that contains the alert of one incident; None without one."""
        return self._messages.get(self._key_of.get(alert.incident, ""))

    def restore(self, message: Alert) -> None:
        """Continue with a message. A newer version that is known already stays."""
        known = self._messages.get(message.incident)
        if not message.outage or (known is not None and known.version > message.version):
            return
        self._messages[message.incident] = message
        if self._find_open(message.outage) is None:
            self._latest[message.outage] = message.incident
        self._key_of.update(dict.fromkeys((one.incident for one in message.each), message.incident))

    def _find_open(self, outage: str) -> Alert | None:
        """Return the message that an incident of the outage joins."""
        latest = self._messages.get(self._latest.get(outage, ""))
        return latest if latest and latest.facts.state is AlertState.OPEN else None

    def _forget(self, message: Alert) -> None:
        self._messages.pop(message.incident, None)
        for one in message.each:
            self._key_of.pop(one.incident, None)
        if self._latest.get(message.outage) == message.incident:
            del self._latest[message.outage]


def join_alert(before: Alert | None, alert: Alert, links: AlertLinks) -> Alert:
    """Return a message after a change of one alert in it. `before` is None for a new message.

    The message about a single incident is the alert of that incident.
    """
    by_incident = {one.incident: one for one in (before.each if before else ())}
    members = tuple((by_incident | {alert.incident: alert}).values())
    if before is None or len(members) == 1:
        return alert
    facts = _describe(members, links.outages())
    lines = write_outage(facts)
    return Alert(
        incident=before.incident,
        version=before.version + 1,
        facts=AlertFacts(
            job=facts.cause,
            domain=facts.domain,
            state=facts.state,
            ranks=facts.ranks,
            url=facts.url,
            runbook_url=members[0].facts.runbook_url,
            dashboard_url=links.fleet_dashboard(),
        ),
        labels=_join_labels(members),
        cause=_most_common([one.cause for one in members]),
        opened_at=min(one.opened_at for one in members),
        closed_at=_find_end(members),
        sharer=before.sharer,
        outage=before.outage,
        members=members,
        outage_lines=mark_drill(lines) if members[0].facts.is_drill else lines,
    )


def _find_end(members: Sequence[Alert]) -> float | None:
    ends = [one.closed_at for one in members if one.closed_at is not None]
    return max(ends) if len(ends) == len(members) else None


def _join_labels(members: Sequence[Alert]) -> dict[str, str]:
    """Return the labels that all members have, and the worst of their severities."""
    first, *others = (one.labels for one in members)
    common = {
        name: value
        for name, value in first.items()
        if all(other.get(name) == value for other in others)
    }
    severities = [one.labels.get("severity", "") for one in members]
    return common | {"severity": min(severities, key=_rank_severity)}


def _rank_severity(severity: str) -> int:
    return WORST_FIRST.index(severity) if severity in WORST_FIRST else -1


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


def _describe(members: Sequence[Alert], url: str) -> OutageFacts:
    still_open = [one for one in members if not one.is_over]
    counted = still_open or members
    sizes = [one.facts.ranks for one in counted]
    gpus = [one.facts.gpus for one in counted]
    names = by_turns((one.sharer, one.facts.job) for one in counted)
    states = Counter(one.facts.state for one in members)
    return OutageFacts(
        outage=members[0].outage,
        cause=members[0].labels.get("shared_cause", ""),
        jobs=tuple(names)[:MAX_NAMED],
        job_count=len(members),
        open_count=len(still_open),
        recovered_count=states[AlertState.RECOVERED],
        acked_count=states[AlertState.ACKED],
        ranks=sum(size or 0 for size in sizes),
        gpus=sum(each or 0 for each in gpus) if all(gpus) else None,
        are_all_counted=all(sizes),
        domain=_most_common([one.facts.domain for one in members]),
        state=_find_state(members),
        url=url,
    )


def _find_state(members: Sequence[Alert]) -> AlertState:
    states = {one.facts.state for one in members if not one.is_over}
    if states:
        return AlertState.ACKED if states == {AlertState.ACKED} else AlertState.OPEN
    ends = {one.facts.state for one in members}
    return AlertState.RECOVERED if ends == {AlertState.RECOVERED} else AlertState.CLOSED


def _most_common(values: Sequence[str]) -> str:
    return Counter(values).most_common(1)[0][0]


def write_outage(facts: OutageFacts) -> tuple[str, ...]:
    """Return three lines. None is longer than the lines about one incident."""
    cause, names = clean(facts.cause, MAX_CAUSE), _name_jobs(facts)
    call = write_whom_to_call(facts.domain)
    details = "Details: watchtower outages"
    if facts.state is AlertState.OPEN:
        details = f"Acknowledge: watchtower ack --outage {facts.outage} | {details}"
    if facts.url and len(facts.url) <= MAX_URL:
        details += f" | {facts.url}"
    if facts.open_count:
        tag = "OUTAGE, acknowledged" if facts.state is AlertState.ACKED else "OUTAGE"
        first = f"[{tag}] {cause}: {_write_open_jobs(facts)}, {_write_size(facts)}"
        return first, f"{call} {names} hang on it. {_write_acks(facts)}".rstrip(), details
    first = f"[OUTAGE OVER] {cause}: {_write_outcome(facts)}, {_write_size(facts)}"
    return (
        first,
        f"It was the shared cause of {names}. If it happens again: {call[:1].lower()}{call[1:]}",
        details,
    )


def _write_open_jobs(facts: OutageFacts) -> str:
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
    names = [clean(job, MAX_JOB) or "unnamed job" for job in facts.jobs[:MAX_NAMED]]
    return name_some(names, facts.job_count)
