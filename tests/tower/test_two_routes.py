"""The warning that direct alerts and the rules of Prometheus may notify people twice."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.diagnosers import in_thread
from watchtower.alerts.destinations.alertmanager import Alertmanager
from watchtower.alerts.destinations.webhook import Webhook
from watchtower.alerts.notifier import AlertNotifier
from watchtower.app import make_app
from watchtower.incidents.incident import NO_SHADOW, ShadowMode
from watchtower.policy import Policy
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.tower.tower import Tower

SCRAPE = {"X-Prometheus-Scrape-Timeout-Seconds": "10", "User-Agent": "Prometheus/2.42.0"}
WEBHOOK = Webhook("http://127.0.0.1:9/")
ALERTMANAGER = Alertmanager("http://127.0.0.1:9")


def scrape(tmp_path: Path, destinations, headers=SCRAPE, shadow=NO_SHADOW) -> list[str]:
    """Scrape a tower twice; returns the notes of /readyz."""
    store = SqliteStore(tmp_path / "watchtower.db")
    tower = Tower(Policy(), store, store.recall(), Clock(), in_thread, shadow=shadow)
    alerts = AlertNotifier(destinations, store, Clock())
    with TestClient(make_app(tower, alerts=alerts)) as client:
        for _ in range(2):
            assert client.get("/metrics", headers=headers).is_success
        notes = client.get("/readyz").json()["notes"]
    store.close()
    return notes


def test_a_direct_destination_and_a_prometheus_are_two_routes(tmp_path: Path, caplog):
    (note,) = scrape(tmp_path, [WEBHOOK, ALERTMANAGER])
    assert "the tower also sends alerts to webhook: " in note
    assert [
        record.message
        for record in caplog.records
        if "two" in record.message or "twice" in record.message
    ] == [note]


@pytest.mark.parametrize(
    ("destinations", "headers"),
    [([], SCRAPE), ([ALERTMANAGER], SCRAPE), ([WEBHOOK], {"User-Agent": "curl/8"})],
    ids=["no destination", "Alertmanager merges both", "a person reads the metrics"],
)
def test_one_route_is_not_reported(tmp_path: Path, destinations, headers):
    assert scrape(tmp_path, destinations, headers) == []


def test_in_shadow_mode_no_route_sends(tmp_path: Path):
    (note,) = scrape(tmp_path, [WEBHOOK], shadow=ShadowMode(everything=True))
    assert note.startswith("shadow mode is on")
