"""An Alertmanager that gets each alert on both routes: from Prometheus and from the tower."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.system.hung_jobs import FAST, SmallJob, reporting
from tests.system.monitoring import free_address, needs_prometheus, receiving, watching
from tests.system.test_alerts import address_of, call, wait_for_steps, wait_until
from tests.towers import running_tower

pytestmark = [pytest.mark.e2e, needs_prometheus, pytest.mark.timeout(400)]

MORE_THAN_A_REPEAT_S = 75.0
"""The tower sends an open alert every 60 s."""


def test_an_acknowledged_alert_ends_once_on_both_routes(tmp_path: Path):
    job, alertmanager = SmallJob("llama-a"), free_address()
    settings = f'{FAST}\n[alerts]\nalertmanager_url = "http://{alertmanager}"\n'
    (tmp_path / "tower.toml").write_text(settings)
    with (
        running_tower(tmp_path, "--config", str(tmp_path / "tower.toml")) as tower,
        reporting(tower.url, job),
        receiving() as receiver,
        watching(tmp_path, address_of(tower), receiver, alertmanager=alertmanager) as prometheus,
    ):
        wait_for_steps(tower, job)
        job.stop()
        wait_until(prometheus.firing, "the rule fires")
        wait_until(lambda: receiver.sent("firing", job.name), "the alert is notified")
        incident = receiver.sent("firing", job.name)[0]["labels"]["incident"]
        call(f"{tower.url}/api/v1/incidents/{incident}/ack", {"by": "ann"})
        wait_until(lambda: receiver.sent("resolved", job.name), "the alert ends")
        time.sleep(MORE_THAN_A_REPEAT_S)
        seen = [(one["status"], one["annotations"]["summary"]) for one in receiver.alerts]
        assert [status for status, _ in seen] == ["firing", "resolved"], seen
