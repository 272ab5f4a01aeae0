"""`watchtower alert test DEST`: sends a test message by the destination's own code."""

from __future__ import annotations

import time

from watchtower.alerts.alert import Alert
from watchtower.alerts.destination import DeliveryError, Destination
from watchtower.alerts.destinations import make_destinations
from watchtower.alerts.message import AlertFacts
from watchtower.alerts.settings import AlertSettings
from watchtower.commands.client import DONE, TROUBLE, UNUSABLE

LEFT_OPEN = {
    "alertmanager": "Alertmanager ends the test alert by itself after some minutes.",
    "pagerduty": "Resolve the test alert in PagerDuty: watchtower does not.",
}


def send_test(name: str, settings: AlertSettings) -> int:
    """Send a test message to one destination and print the result. Raises ConfigError."""
    destination = find_destination(name, settings)
    if destination is None:
        return UNUSABLE
    alert = make_test_alert(time.time())
    print("\n".join(alert.lines))
    try:
        destination.deliver(alert, "")
    except DeliveryError as error:
        print(f"not sent to {name}: {error}")
        return TROUBLE
    print(f"sent to {name}. {LEFT_OPEN.get(name, '')}".rstrip())
    return DONE


def find_destination(name: str, settings: AlertSettings) -> Destination | None:
    """Return a destination. Prints which ones are configured if it is not. Raises ConfigError."""
    made = {each.name: each for each in make_destinations(settings)}
    if name not in made:
        known = ", ".join(made) or "none"
        print(f"{name} is not configured in [alerts] or the environment. Configured: {known}.")
    return made.get(name)


def make_test_alert(now: float) -> Alert:
    """Return an alert that every reader recognizes as a test. `now`: UNIX seconds."""
    ident = f"test-{int(now)}"
    facts = AlertFacts(
        job="watchtower-test",
        status="test",
        what="This message tests the alerts of watchtower; no job hangs.",
        advice="do nothing, because this is a test",
    )
    labels = {
        "alertname": "WatchtowerTest",
        "severity": "warning",
        "training_job": "watchtower-test",
        "incident": ident,
        "kind": "test",
    }
    return Alert(incident=ident, version=1, facts=facts, labels=labels, opened_at=now)
