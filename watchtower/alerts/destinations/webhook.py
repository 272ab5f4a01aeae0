"""A generic webhook: the payload that Alertmanager sends to its webhook receivers (version 4).

So a receiver that was written for Alertmanager accepts it.
https://prometheus.io/docs/alerting/latest/configuration/#webhook_config
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from watchtower.alerts.alert import Alert
from watchtower.alerts.destination import post
from watchtower.alerts.settings import AlertSettings, check_url, read_secret
from watchtower.writing.times import rfc3339

NOT_OVER = "0001-01-01T00:00:00Z"
"""End of an alert that still fires."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """Sends the incident's current state after every change."""

    url: str = field(repr=False)
    name: str = "webhook"
    repeat_s: float | None = None
    end_delay_s: float = 0.0
    joins_outages: bool = True

    def deliver(self, alert: Alert, receipt: str) -> str:
        """Send the alert. The receiver can drop a duplicate by the header `Idempotency-Key`."""
        key = f"{alert.incident}:{alert.version}"
        post(self.url, json.dumps(make_payload(alert)).encode(), {"Idempotency-Key": key})
        return ""


def make_webhook(settings: AlertSettings) -> Webhook | None:
    """Return the webhook if it is configured. Raises ConfigError."""
    url = read_secret("webhook_url_file", settings.webhook_url_file)
    return Webhook(check_url("webhook_url_file", url)) if url else None


def make_payload(alert: Alert) -> dict[str, object]:
    """Return the payload with its alerts: one, or those of all incidents of an outage."""
    shared = {"shared_cause": alert.labels.get("shared_cause", "")}
    return {
        "version": "4",
        "groupKey": f"watchtower:{alert.incident}",
        "truncatedAlerts": 0,
        "status": _status(alert),
        "receiver": "watchtower",
        "groupLabels": shared if alert.members else {"incident": alert.incident},
        "commonLabels": alert.labels,
        "commonAnnotations": annotate(alert),
        "externalURL": alert.facts.url,
        "alerts": [_make_alert(one) for one in alert.each],
    }


def _make_alert(alert: Alert) -> dict[str, object]:
    return {
        "status": _status(alert),
        "labels": alert.labels,
        "annotations": annotate(alert),
        "startsAt": rfc3339(alert.opened_at),
        "endsAt": NOT_OVER if alert.closed_at is None else rfc3339(alert.closed_at),
        "generatorURL": alert.facts.url,
        "fingerprint": alert.incident,
    }


def _status(alert: Alert) -> str:
    return "resolved" if alert.is_over else "firing"


def annotate(alert: Alert) -> dict[str, str]:
    """Return the texts of an alert: the message, and its parts for a receiver's own template."""
    facts = alert.facts
    notes = {
        "summary": alert.lines[0],
        "description": "\n".join(alert.lines),
        "url": facts.url,
        "runbook_url": facts.runbook_url,
        "dashboard_url": facts.dashboard_url,
        "cause": alert.cause,
        "rank": "" if facts.rank is None else str(facts.rank),
        "node": facts.node,
        "state": facts.state.value,
    }
    return {name: text for name, text in notes.items() if text}
