"""The tower's own alerts in a real Alertmanager."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from tests.alerts.notifying import LINKS, an_incident, closed, opened, updated
from tests.system.monitoring import (
    alerting,
    documented,
    free_address,
    needs_prometheus,
    receiving,
)
from tests.waiting import wait_until
from watchtower.alerts.alert import make_alert
from watchtower.alerts.destinations.alertmanager import make_alertmanager
from watchtower.alerts.settings import AlertSettings

pytestmark = [pytest.mark.e2e, needs_prometheus, pytest.mark.timeout(300)]


def test_an_incident_is_one_alert_that_fires_changes_its_text_and_ends(tmp_path: Path):
    address = free_address()

    def active() -> list[dict]:
        url = f"http://{address}/api/v2/alerts"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)

    with receiving() as receiver:
        (tmp_path / "alertmanager.yml").write_text(
            documented("alertmanager.yml", {"on-call:8080": receiver.address})
        )
        with alerting(tmp_path, address):
            destination = make_alertmanager(AlertSettings(alertmanager_url=f"http://{address}"))
            assert destination is not None
            first = make_alert(opened(an_incident()), LINKS, None)
            destination.deliver(first, "")
            wait_until(lambda: receiver.sent("firing", "llama"), "the alert fires", patience_s=90)
            corrected = make_alert(updated(an_incident(rank=5)), LINKS, first)
            for _ in range(3):
                destination.deliver(corrected, "")
            wait_until(lambda: "rank 5" in str(active()), "the text is corrected", patience_s=90)
            (alert,) = active()
            assert "rank 3" not in alert["annotations"]["summary"]
            assert len(receiver.sent("firing", "llama")) == 1
            over = make_alert(closed(an_incident(rank=5)), LINKS, corrected)
            destination.deliver(over, "")
            wait_until(lambda: receiver.sent("resolved", "llama"), "it ends", patience_s=90)
            assert not active()
            assert len(receiver.sent("resolved", "llama")) == 1
