"""An Alertmanager, without a Prometheus in between: API v2.

The alert has the labels of the Prometheus rule, so that both are one alert in Alertmanager.
https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from watchtower.alerts.alert import Alert, is_news
from watchtower.alerts.destination import post
from watchtower.alerts.destinations.webhook import annotate
from watchtower.alerts.settings import AlertSettings, check_url, read_secret
from watchtower.service.settings import ConfigError
from watchtower.writing.times import rfc3339

REPEAT_S = 60.0
"""Seconds between two deliveries of an open alert."""

VALID_S = 240.0
"""Seconds from a delivery to the end that Alertmanager assumes. A tower that was away for 60 s has
sent the alert again before; the alerts of a dead tower end."""

END_DELAY_S = 15.0
"""Seconds by which the end of an alert is delayed. A Prometheus that has the rules notices the end
up to 12 s later than the tower. If it sent the alert again in between, the alert would fire, and be
notified, a second time."""

MOST = 500
"""Alerts of one request: about 1 MB."""


@dataclass(frozen=True, slots=True)
class Alertmanager:
    """Sends the current state of alerts, again and again until their ends."""

    url: str = field(repr=False)
    """With the path of the API."""
    name: str = "alertmanager"
    repeat_s: float | None = REPEAT_S
    most: int = MOST
    end_delay_s: float = END_DELAY_S
    joins_outages: bool = False
    """Its own route groups alerts by their label `shared_cause`."""

    def deliver(self, alert: Alert, receipt: str) -> str:
        """Send the alert. Alertmanager recognizes it by its labels, so a duplicate is harmless."""
        self.deliver_all([alert])
        return ""

    def deliver_all(self, alerts: Sequence[Alert]) -> None:
        """Send all these alerts in one request. Alertmanager accepts the valid ones."""
        now = time.time()
        bodies = [make_alert_body(alert, now) for alert in alerts]
        post(self.url, json.dumps(bodies).encode(), {})


def make_alertmanager(settings: AlertSettings) -> Alertmanager | None:
    """Return the Alertmanager if it is configured. Raises ConfigError."""
    key, url = "alertmanager_url", settings.alertmanager_url
    secret = read_secret(f"{key}_file", settings.alertmanager_url_file)
    if url and settings.alertmanager_url_file:
        raise ConfigError(f"`{key}` and `{key}_file` exclude each other")
    if secret and not url:
        key, url = f"{key}_file", secret
    return Alertmanager(f"{check_url(key, url).rstrip('/')}/api/v2/alerts") if url else None


def make_alert_body(alert: Alert, now: float) -> dict[str, object]:
    """Return one alert of the API. `now`: UNIX seconds.

    An acknowledged alert ends, as the rules of Prometheus end it. Otherwise Alertmanager, which may
    receive it on both routes, would end it and fire it again with every repetition.
    """
    ends_at = now + VALID_S
    if alert.closed_at is not None and not is_news(alert):
        ends_at = max(alert.closed_at, alert.opened_at)
    elif not alert.fires:
        ends_at = max(now, alert.opened_at)
    body: dict[str, object] = {
        "labels": alert.labels,
        "annotations": annotate(alert),
        "startsAt": rfc3339(alert.opened_at),
        "endsAt": rfc3339(ends_at),
    }
    if alert.facts.url:
        body["generatorURL"] = alert.facts.url
    return body
