"""The outbox of each destination on /metrics."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tests.alerts.test_outbox import an_alert, send
from watchtower.alerts.destinations.webhook import Webhook
from watchtower.alerts.notifier import AlertNotifier
from watchtower.api.job_metrics import collect_outboxes
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock


class At(Clock):
    """A clock that stands still."""

    def now(self) -> float:
        return 100.0


class Page(Collector):
    """The families of the outboxes at one moment."""

    def __init__(self, alerts: AlertNotifier) -> None:
        self._alerts = alerts

    def collect(self) -> list[Metric]:
        return collect_outboxes(self._alerts.outboxes(), 100.0)


def scrape(alerts: AlertNotifier) -> list[str]:
    registry = CollectorRegistry()
    registry.register(Page(alerts))
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if line.startswith("watchtower_")]


def test_each_destination_has_its_series(tmp_path: Path):
    store = SqliteStore(tmp_path / "watchtower.db")
    places = [Webhook("http://a.example"), Webhook("http://b.example", name="second")]
    alerts = AlertNotifier(places, store, At())
    outbox = alerts.outboxes()["webhook"]
    outbox.put(an_alert("sent"), 50.0)
    assert send(outbox, 50.0)
    outbox.put(an_alert("waits"), 60.0)
    outbox.note_failed("waits", 61.0, is_permanent=False, retry_after_s=None)
    assert scrape(alerts) == [
        'watchtower_outbox_waiting{destination="webhook"} 1.0',
        'watchtower_outbox_waiting{destination="second"} 0.0',
        'watchtower_outbox_oldest_seconds{destination="webhook"} 40.0',
        'watchtower_outbox_oldest_seconds{destination="second"} 0.0',
        'watchtower_outbox_deliveries_total{destination="webhook"} 1.0',
        'watchtower_outbox_deliveries_total{destination="second"} 0.0',
        'watchtower_outbox_failures_total{destination="webhook"} 1.0',
        'watchtower_outbox_failures_total{destination="second"} 0.0',
    ]
    for sender in alerts.senders.values():
        sender.thread.stop(1.0)
    store.close()


def test_without_destinations_there_are_no_series(tmp_path: Path):
    store = SqliteStore(tmp_path / "watchtower.db")
    assert scrape(AlertNotifier([], store, At())) == []
    store.close()
