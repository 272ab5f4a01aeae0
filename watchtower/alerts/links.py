"""Addresses in alerts: the verdict, the runbook, and the dashboard in Grafana.

Each is empty without its setting. The rules of Prometheus have the same addresses.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from watchtower.alerts.settings import AlertSettings, check_url


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
