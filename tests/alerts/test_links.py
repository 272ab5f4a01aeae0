"""Links from a message to the verdict, the runbook and the dashboard."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.alerts.notifying import an_incident, opened
from tests.alerts.test_outage_alerts import on_mount
from watchtower.alerts.alert import Alert, make_alert
from watchtower.alerts.destinations.pagerduty import TRIGGER, make_event
from watchtower.alerts.destinations.slack import make_message
from watchtower.alerts.destinations.webhook import make_payload
from watchtower.alerts.labels import ALERT_NAMES, AlertLinks, make_links
from watchtower.alerts.outage_alert import OutageAlerts
from watchtower.alerts.settings import AlertSettings
from watchtower.service.settings import ConfigError

ROOT = Path(__file__).parents[2]

ALL = AlertLinks(
    public_url="https://tower",
    runbooks_url="https://wiki/watchtower",
    grafana_url="https://grafana",
)
URLS = {
    "Details": "https://tower/incidents/01A",
    "Runbook": "https://wiki/watchtower/alerts/WatchtowerJobHung.md",
    "Dashboard": "https://grafana/d/watchtower-incident?var-incident=01A",
}


def an_alert(links: AlertLinks) -> Alert:
    return make_alert(opened(an_incident()), links, None)


def test_the_message_has_each_link_that_is_configured():
    line = an_alert(ALL).lines[2]
    for name, url in URLS.items():
        assert f"{name}: {url}" in line
    bare = an_alert(AlertLinks()).lines[2]
    assert bare == "Acknowledge: watchtower ack 01A | Details: watchtower incident 01A"


def test_every_destination_has_the_links():
    alert = an_alert(ALL)
    assert alert.facts.links == URLS
    notes = make_payload(alert)["alerts"][0]["annotations"]  # type: ignore[index]
    assert [notes[key] for key in ("url", "runbook_url", "dashboard_url")] == list(URLS.values())
    event = make_event(alert, TRIGGER)
    assert event["links"] == [{"href": url, "text": name} for name, url in URLS.items()]
    assert all(url in json.dumps(make_message(alert)) for url in URLS.values())


def test_the_message_of_an_outage_has_the_links_of_the_outage():
    outages = OutageAlerts(ALL)
    for ident in ("01A", "01B"):
        message = outages.put(make_alert(opened(on_mount(ident)), ALL, None))
    assert message.facts.links == {
        "Details": "https://tower/",
        "Runbook": URLS["Runbook"],
        "Dashboard": "https://grafana/d/watchtower-fleet",
    }


def test_the_links_are_those_of_the_rules_of_prometheus():
    text = (ROOT / "deploy/prometheus/watchtower.rules.yml").read_text("utf-8")
    rules = yaml.safe_load(text)["groups"][0]["rules"]
    by_name = {rule["alert"]: rule["annotations"] for rule in rules}
    links = AlertLinks(
        runbooks_url="https://runbooks.example", grafana_url="https://grafana.example"
    )
    for name in ALERT_NAMES.values():
        assert by_name[name]["runbook_url"] == links.runbook(name)
        assert (ROOT / f"docs/runbooks/alerts/{name}.md").exists()
        address = by_name[name]["dashboard_url"].replace("{{ $labels.incident | urlquery }}", "01A")
        assert address == links.dashboard("01A")


def test_the_addresses_are_checked():
    made = make_links(AlertSettings(grafana_url="https://grafana/sub/"), "https://tower")
    assert made.fleet_dashboard() == "https://grafana/sub/d/watchtower-fleet"
    assert made.runbook("X") == ""
    for settings in (AlertSettings(runbooks_url="wiki"), AlertSettings(grafana_url="http://a b")):
        with pytest.raises(ConfigError):
            make_links(settings, "")
