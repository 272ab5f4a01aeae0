"""Labels of alerts and of the metrics from which Prometheus makes alerts, and addresses in alerts.

Both routes have the same labels and addresses, so that Alertmanager merges an alert that comes on
both. The labels are frozen when the incident opens: an alert whose labels change would end, and
another one would fire. An address is empty without its setting.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from watchtower.alerts.settings import AlertSettings, check_url
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertLinks:
    """Where the pages about an alert are. Without a slash at the end of an address."""

    public_url: str = ""
    """Address of the tower for people."""
    runbooks_url: str = ""
    """Address of the published folder `docs/runbooks`."""
    grafana_url: str = ""
    """Address of a Grafana with the dashboards of watchtower."""

    def details(self, incident: str) -> str:
        """Return the address of the page of an incident."""
        return self._join(self.public_url, f"/incidents/{incident}")

    def outages(self) -> str:
        """Return the address of the page that lists the outages."""
        return self._join(self.public_url, "/")

    def runbook(self, alert_name: str) -> str:
        """Return the address of the runbook of an alert."""
        return self._join(self.runbooks_url, f"/alerts/{alert_name}.md")

    def cause(self, name: str) -> str:
        """Return the address of the runbook of a cause."""
        return self._join(self.runbooks_url, f"/causes/{name}.md")

    def dashboard(self, incident: str) -> str:
        """Return the address of the dashboard of an incident."""
        named = quote(incident, safe="")
        return self._join(self.grafana_url, f"/d/watchtower-incident?var-incident={named}")

    def fleet_dashboard(self) -> str:
        """Return the address of the dashboard of all jobs."""
        return self._join(self.grafana_url, "/d/watchtower-fleet")

    def _join(self, address: str, path: str) -> str:
        return f"{address}{path}" if address else ""


NO_LINKS = AlertLinks()


def make_links(settings: AlertSettings, public_url: str) -> AlertLinks:
    """Return the configured addresses. Raises ConfigError."""
    return AlertLinks(
        public_url=public_url,
        runbooks_url=_read_url("runbooks_url", settings.runbooks_url),
        grafana_url=_read_url("grafana_url", settings.grafana_url),
    )


def _read_url(key: str, url: str) -> str:
    return check_url(key, url).rstrip("/") if url else ""
