"""PagerDuty, by its Events API v2. The deduplication key is the incident.

So a corrected verdict changes the alert of PagerDuty, and sends no second notification.
https://developer.pagerduty.com/docs/events-api-v2/trigger-events/
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from watchtower.alerts.alert import Alert, is_news
from watchtower.alerts.destination import DeliveryError, post
from watchtower.alerts.destinations.webhook import annotate
from watchtower.alerts.message import AlertState
from watchtower.alerts.settings import AlertSettings, check_url, read_secret

MAX_SUMMARY, MAX_KEY, MAX_FIELD = 1024, 255, 255
"""Characters that PagerDuty accepts in a summary and a key, and that we send in other fields."""

TRIGGER, ACKNOWLEDGE, RESOLVE = "trigger", "acknowledge", "resolve"


@dataclass(frozen=True, slots=True)
class PagerDuty:
    """Sends one event for each change. The receipt is the last state that was sent."""

    url: str
    key: str = field(repr=False)
    name: str = "pagerduty"
    repeat_s: float | None = None
    end_delay_s: float = 0.0
    joins_outages: bool = True

    def deliver(self, alert: Alert, receipt: str) -> str:
        """Send the event. PagerDuty recognizes a duplicate by its key."""
        action = choose_action(alert, receipt)
        event = make_event(alert, action) | {"routing_key": self.key}
        try:
            post(self.url, json.dumps(event).encode(), {})
        except DeliveryError as error:
            raise DeliveryError(
                str(error).replace(self.key, "..."),
                is_permanent=error.is_permanent,
                retry_after_s=error.retry_after_s,
            ) from None
        return RESOLVE if action == RESOLVE else _state(alert)


def make_pagerduty(settings: AlertSettings) -> PagerDuty | None:
    """Return PagerDuty if it is configured. Raises ConfigError."""
    key = read_secret("pagerduty_key_file", settings.pagerduty_key_file)
    return PagerDuty(check_url("pagerduty_url", settings.pagerduty_url), key) if key else None


def choose_action(alert: Alert, receipt: str) -> str:
    """Return the event to send. `receipt`: the state that was sent last; empty for the first time.

    An acknowledged alert whose text has changed is triggered: PagerDuty changes the text, and the
    alert stays acknowledged.
    """
    if alert.is_over and not is_news(alert):
        return RESOLVE
    return ACKNOWLEDGE if _state(alert) == ACKNOWLEDGE != receipt else TRIGGER


def make_event(alert: Alert, action: str) -> dict[str, object]:
    """Return the event without the routing key."""
    event: dict[str, object] = {"event_action": action, "dedup_key": alert.incident[:MAX_KEY]}
    if action != TRIGGER:
        return event
    facts = alert.facts
    event["client"] = "watchtower"
    event["links"] = [{"href": url, "text": text} for text, url in facts.links.items()]
    event["payload"] = {
        "summary": alert.lines[0][:MAX_SUMMARY],
        "source": (facts.node or facts.job or "watchtower")[:MAX_FIELD],
        "severity": alert.labels["severity"],
        "component": facts.job[:MAX_FIELD],
        "class": alert.labels.get("kind", ""),
        "custom_details": {**alert.labels, **annotate(alert)},
    }
    return event


def _state(alert: Alert) -> str:
    return ACKNOWLEDGE if alert.facts.state is AlertState.ACKED else TRIGGER
