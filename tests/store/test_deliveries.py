from __future__ import annotations

from pathlib import Path

from tests.store.test_retention import closed, prune_all
from watchtower.incidents.incident import Delivery
from watchtower.store.retention import Retention
from watchtower.store.sqlite import SqliteStore
from watchtower.store.values import AlertRow


def row(delivered: int, at: float, destination: str = "slack") -> AlertRow:
    return AlertRow(
        destination=destination,
        incident="0001",
        alert="{}",
        version=2,
        delivered=delivered,
        receipt="",
        updated_at=at,
    )


def test_the_first_delivery_to_each_destination_stays_after_the_end_of_the_alert(tmp_path: Path):
    store = SqliteStore(tmp_path / "watchtower.db")
    store.save_alert(row(0, 10.0)).result()
    assert store.deliveries("0001").result() == ()
    store.save_alert(row(1, 11.0)).result()
    store.save_alert(row(2, 30.0)).result()
    store.remove_alert("slack", "0001", 40.0).result()
    store.remove_alert("pagerduty", "0001", 41.0).result()
    store.remove_alert("webhook", "0001").result()
    assert store.deliveries("0001").result() == (
        Delivery(destination="slack", at=11.0),
        Delivery(destination="pagerduty", at=41.0),
    )
    store.close()


def test_deliveries_go_with_their_incident(tmp_path: Path):
    store = SqliteStore(tmp_path / "watchtower.db", Retention(incidents=100))
    for number in range(102):
        store.save_incident(closed(number)).result()
    store.remove_alert("slack", "0001", 40.0).result()
    store.remove_alert("slack", "0101", 40.0).result()
    prune_all(store)
    assert store.incident("0001").result() is None
    assert store.deliveries("0001").result() == ()
    assert store.deliveries("0101").result()
    store.close()
