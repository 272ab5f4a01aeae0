"""The destinations of alerts: one file each. The list names the function that makes each of them.

A new destination is a file with such a function, a line here, its settings in `alerts.settings`,
and its page in docs/alerts.md.
"""

from __future__ import annotations

from watchtower.alerts.destination import Destination
from watchtower.alerts.destinations.alertmanager import make_alertmanager
from watchtower.alerts.destinations.apprise import make_apprise
from watchtower.alerts.destinations.pagerduty import make_pagerduty
from watchtower.alerts.destinations.slack import make_slack
from watchtower.alerts.destinations.webhook import make_webhook
from watchtower.alerts.settings import AlertSettings

MAKERS = (make_webhook, make_alertmanager, make_slack, make_pagerduty, make_apprise)


def make_destinations(settings: AlertSettings) -> tuple[Destination, ...]:
    """Return the configured destinations. Raises ConfigError."""
    made = (make(settings) for make in MAKERS)
    return tuple(destination for destination in made if destination is not None)
