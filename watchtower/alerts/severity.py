"""How urgent an alert is. The Prometheus rules have the same severities."""

from __future__ import annotations

from watchtower.alerts.alert import Alert
from watchtower.alerts.message import AlertState
from watchtower.store.values import IncidentKind

CRITICAL, WARNING = "critical", "warning"


def find_severity(alert: Alert) -> str:
    """Return the severity of an alert. It never changes, because the kind does not."""
    return CRITICAL if alert.labels.get("kind") == IncidentKind.HUNG.value else WARNING


def is_news(alert: Alert) -> bool:
    """Return whether the incident was never open, such as the end of a job.

    A person must be notified, although the incident is over.
    """
    return alert.is_over and alert.facts.state is AlertState.OPEN
