"""An alert: one incident as a destination must show it now. Pure: an event in, an alert out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from watchtower.alerts.labels import ALERT_NAMES, DRILL_LABELS, AlertLinks, has_alert, label_alert
from watchtower.alerts.message import AlertFacts, AlertState, write_message
from watchtower.incidents.incident import Incident, IncidentKind
from watchtower.incidents.kill_text import KillFacts, gather_kill_facts
from watchtower.tower.incident_events import Change, IncidentEvent
from watchtower.views import copy_fields
from watchtower.views.people import Subject, subject_of
from watchtower.wire.verdict import Aftermath, Status, Verdict
from watchtower.writing.printable import label
from watchtower.writing.ranksets import name_set, parse_ranks

SHOWN_AFTERMATH = 3
"""Most events after the opening in one message. A kill of all ranks is often two: some ranks lose
their connections before the signal reaches them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One incident, for its destinations."""

    incident: str
    version: int
    """Grows with every change of the alert."""
    facts: AlertFacts
    labels: dict[str, str] = field(default_factory=dict)
    """The identity of the alert: the same labels as in the Prometheus rules. They never change."""
    cause: str = ""
    opened_at: float = 0.0
    """UNIX seconds."""
    closed_at: float | None = None
    sharer: str = ""
    """Owner of the job; the job's own name if the owner is not known."""
    founder: str = ""
    """Node that reported the job first."""
    subject: Subject = field(default_factory=Subject)
    """The subjects that a silence of this alert may name."""
    outage: str = ""
    """Id of the outage of the incident; empty without a shared cause."""
    members: tuple[Alert, ...] = ()
    """In a message about several incidents of an outage: the alert of each, oldest first."""
    outage_lines: tuple[str, ...] = ()
    """The text of such a message."""

    @property
    def each(self) -> tuple[Alert, ...]:
        """The alerts of single incidents that it contains."""
        return self.members or (self,)

    @property
    def is_over(self) -> bool:
        """Whether the incident is closed."""
        return self.closed_at is not None

    @property
    def fires(self) -> bool:
        """Whether a rule of Prometheus would fire: the incident is open and not acknowledged, or it
        is the end of a job."""
        return self.facts.state is AlertState.OPEN

    @property
    def lines(self) -> tuple[str, ...]:
        """The message: one to three lines of plain text."""
        return self.outage_lines or write_message(self.facts)


def make_alert(
    event: IncidentEvent, links: AlertLinks, before: Alert | None, *, is_drill: bool = False
) -> Alert:
    """Return the alert after an event. `before` is the alert after the event before.

    `is_drill` marks it, so that it wakes no person: in its text, its name and its severity.
    The version is the same if nothing changed that a reader needs to know.
    """
    incident = event.incident
    facts = describe_incident(incident)
    # A message must not change for the usual length of a step: it stays as it was first known.
    usual_s = before.facts.step_s if before else None
    labels = label_alert(incident) | (DRILL_LABELS if is_drill else {})
    alert = Alert(
        incident=incident.id,
        version=before.version if before else 1,
        facts=replace(
            facts,
            step_s=facts.step_s if usual_s is None else usual_s,
            url=links.details(incident.id),
            runbook_url=links.runbook(ALERT_NAMES[incident.identity.kind]),
            dashboard_url=links.dashboard(incident.id),
            is_drill=is_drill,
        ),
        labels=before.labels if before else labels,
        cause=incident.verdict.cause.value if incident.verdict.cause else "",
        opened_at=incident.opened_at,
        closed_at=_not_before(incident.opened_at, incident.closed_at),
        sharer=incident.sharer,
        founder=before.founder if before else incident.facts.founder,
        subject=subject_of(incident),
        outage=before.outage if before else incident.identity.outage,
    )
    if before is None or _is_same(before, alert):
        return alert
    return replace(alert, version=before.version + 1)


def end_alert(alert: Alert, wall: float) -> Alert:
    """Return the end of an alert whose incident is not known any more."""
    return replace(
        alert,
        version=alert.version + 1,
        facts=replace(alert.facts, state=AlertState.CLOSED),
        closed_at=_not_before(alert.opened_at, wall),
    )


def is_wanted(event: IncidentEvent) -> bool:
    """Return whether an event of an incident without an alert begins one.

    It does not if `has_alert` is false, or if the tower's last run has already closed the incident.
    """
    is_current = event.change is Change.OPENED or event.incident.closed_at is None
    return is_current and has_alert(event.incident)


def _not_before(opened_at: float, closed_at: float | None) -> float | None:
    """Return the end of an alert: not before its start, although the wall clock may jump."""
    return None if closed_at is None else max(opened_at, closed_at)


def is_news(alert: Alert) -> bool:
    """Return whether the incident was never open, such as the end of a job.

    A person must be notified, although the incident is over.
    """
    return alert.is_over and alert.facts.state is AlertState.OPEN


def _is_same(before: Alert, after: Alert) -> bool:
    """Return whether a reader sees no difference, except in the age of the stall."""
    age = after.facts.stalled_s
    return _seen(replace(before, facts=replace(before.facts, stalled_s=age))) == _seen(after)


def _seen(alert: Alert) -> tuple[object, ...]:
    """Return what a destination may show: the text, the facts with a place of their own, and all
    that is not a fact."""
    facts = alert.facts
    shown = alert.lines, facts.state, facts.rank, facts.node, facts.domain, facts.ranks
    return (*shown, replace(alert, facts=AlertFacts()))


def describe_incident(incident: Incident) -> AlertFacts:
    """Return the facts about an incident."""
    verdict, job = incident.verdict, incident.facts
    first = verdict.suspects[0] if verdict.suspects else None
    return AlertFacts(
        **copy_fields(gather_kill_facts(incident), KillFacts),
        job=incident.job,
        scheduler=job.scheduler,
        scheduler_id=job.scheduler_id,
        user=job.user,
        stalled_s=verdict.stalled_for_s,
        node=label(first.node) if first else "",
        what=first.why if first else verdict.summary,
        waiting=len(parse_ranks(verdict.waiting)) or None,
        confidence=verdict.confidence,
        advice=verdict.next_steps[0] if verdict.next_steps else "",
        incident=incident.id,
        state=_find_state(incident),
        acked_by=incident.ack.by if incident.ack else "",
        aftermath=_write_aftermath(verdict),
    )


def _find_state(incident: Incident) -> AlertState:
    if incident.closed_at is None:
        return AlertState.ACKED if incident.ack else AlertState.OPEN
    if incident.identity.kind is IncidentKind.ENDED:
        return AlertState.OPEN  # news, although the incident was never open
    return AlertState.RECOVERED if incident.status is Status.RECOVERED else AlertState.CLOSED


def _write_aftermath(verdict: Verdict) -> str:
    """Return the last events after the opening, in their order."""
    return "; ".join(_name_event(item) for item in verdict.aftermath[-SHOWN_AFTERMATH:])


def _name_event(item: Aftermath) -> str:
    if not item.ranks:
        return item.text
    return f"{name_set(item.ranks)} {item.text}"
