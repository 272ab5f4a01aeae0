"""Labels of alerts and of the metrics from which Prometheus makes alerts.

Both routes have the same labels, so that Alertmanager merges an alert that comes on both. They are
frozen when the incident opens: an alert whose labels change would end, and another one would fire.
"""

from __future__ import annotations

from watchtower.incidents.incident import Incident, IncidentKind
from watchtower.wire.verdict import Domain, SharedCause
from watchtower.writing.printable import label

IDENTITY = ("incident", "training_job", "shared_cause", "kind", "domain", "user")
"""The labels that identify an incident, in the order of `identify`."""

ALERT_NAMES = {
    IncidentKind.HUNG: "WatchtowerJobHung",
    IncidentKind.NEVER_STARTED: "WatchtowerJobNeverStarted",
    IncidentKind.ENDED: "WatchtowerJobDied",
}
SEVERITIES = {
    IncidentKind.HUNG: "critical",
    IncidentKind.NEVER_STARTED: "warning",
    IncidentKind.ENDED: "warning",
}

DIED_DOMAINS = frozenset({Domain.NODE, Domain.GPU, Domain.NETWORK})
"""Whom to call about the end of a job that has an alert. The owner of any other job reads its
output."""


def has_alert(incident: Incident) -> bool:
    """Return whether an incident has an alert: not in shadow mode, and not the end of each job."""
    identity = incident.identity
    if incident.shadow:
        return False
    return identity.kind is not IncidentKind.ENDED or identity.domain in DIED_DOMAINS


DRILL_LABELS = {"alertname": "WatchtowerDrill", "severity": "info"}
"""Labels of the alert of a drill. They are in no rule, and no rule or route for real alerts matches
them."""


def identify(incident: Incident) -> tuple[str, ...]:
    """Return the values of `IDENTITY`; empty ones are not known."""
    identity = incident.identity
    return (
        incident.id,
        label(incident.job),
        name_shared_cause(incident.verdict.shared_cause),
        identity.kind.value,
        identity.domain.value,
        label(identity.user),
    )


def label_alert(incident: Incident) -> dict[str, str]:
    """Return all labels of the alert of an incident, as the Prometheus rule sets them."""
    kind = incident.identity.kind
    labels = {"alertname": ALERT_NAMES[kind], "severity": SEVERITIES[kind]}
    labels |= zip(IDENTITY, identify(incident), strict=True)
    return {name: value for name, value in labels.items() if value}


def name_shared_cause(cause: SharedCause | None) -> str:
    """Return "mount nfs1:/data" as a label value; "" if no shared cause is known."""
    return label(f"{cause.kind} {cause.name}") if cause else ""
