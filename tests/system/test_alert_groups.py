"""The documented Alertmanager route groups alerts by shared cause, and holds none of them back."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.system.monitoring import (
    Receiver,
    alerting,
    documented,
    free_address,
    needs_prometheus,
    receiving,
)
from tests.towers import JSON
from tests.waiting import wait_until as wait_at_most

pytestmark = [pytest.mark.e2e, needs_prometheus, pytest.mark.timeout(300)]

MOUNT = "mount nfs1:/data"


@dataclass
class Route:
    """An Alertmanager with the documented route, and what it sends."""

    address: str
    receiver: Receiver

    def fire(self, *jobs: str, shared_cause: str = "") -> None:
        """Let an alert fire for each job, as the documented rule makes it."""
        alerts = [
            {
                "labels": {
                    "alertname": "WatchtowerJobHung",
                    "incident": f"incident-of-{job}",
                    "training_job": job,
                    **({"shared_cause": shared_cause} if shared_cause else {}),
                },
                "annotations": {"summary": f"{job} is hung"},
            }
            for job in jobs
        ]
        self._send(alerts)

    def fire_named(self, alert: str, **labels: str) -> None:
        """Let an alert of another rule fire."""
        self._send([{"labels": {"alertname": alert, **labels}}])

    def _send(self, alerts: list[dict[str, object]]) -> None:
        request = urllib.request.Request(
            f"http://{self.address}/api/v2/alerts", json.dumps(alerts).encode(), JSON
        )
        urllib.request.urlopen(request, timeout=10).close()

    def notified(self) -> set[tuple[str, str]]:
        """Rule and job of each alert that was sent."""
        return {
            (alert["labels"]["alertname"], alert["labels"].get("training_job", ""))
            for alert in self.receiver.alerts
        }

    def groups(self) -> list[set[str]]:
        """The jobs of each notification, oldest first."""
        return [
            {alert["labels"]["training_job"] for alert in each["alerts"]}
            for each in self.receiver.notifications
        ]


@contextlib.contextmanager
def routing(folder: Path) -> Iterator[Route]:
    with receiving() as receiver:
        address = free_address()
        text = documented("alertmanager.yml", receiver.addresses)
        (folder / "alertmanager.yml").write_text(text)
        with alerting(folder, address):
            yield Route(address, receiver)


def wait_until(is_so, what: str) -> None:
    """Wait for what takes up to 12 s where nothing else runs."""
    wait_at_most(is_so, what, patience_s=90)


def test_incidents_with_one_shared_cause_are_one_notification_others_one_each(tmp_path: Path):
    many = [f"job-{number}" for number in range(300)]
    with routing(tmp_path) as route:
        route.fire(*many, shared_cause=MOUNT)
        route.fire("alone-a", "alone-b")
        wait_until(lambda: len(route.groups()) == 3, "three notifications came")
        assert {frozenset(group) for group in route.groups()} == {
            frozenset(many),
            frozenset({"alone-a"}),
            frozenset({"alone-b"}),
        }


def test_an_alert_that_joins_a_group_is_notified(tmp_path: Path):
    """A user hangs a job of their own on the mount first: that holds no other job's alert back."""
    with routing(tmp_path) as route:
        route.fire("forged", shared_cause=MOUNT)
        wait_until(lambda: route.groups() == [{"forged"}], "the first one was notified")
        route.fire("victim", shared_cause=MOUNT)
        wait_until(lambda: len(route.groups()) == 2, "the next one was notified")
        assert "victim" in route.groups()[1]


def test_a_hung_job_is_not_reported_as_slow_and_a_missing_tower_hides_missing_agents(
    tmp_path: Path,
):
    with routing(tmp_path) as route:
        route.fire("both")
        route.fire_named("WatchtowerDown")
        route.fire_named("WatchtowerJobNeverStarted", training_job="late")
        hung_and_down = {("WatchtowerJobHung", "both"), ("WatchtowerDown", "")}
        hung_and_down |= {("WatchtowerJobNeverStarted", "late")}
        wait_until(lambda: route.notified() == hung_and_down, "all were notified")
        route.fire_named("WatchtowerJobSlow", training_job="both")
        route.fire_named("WatchtowerJobNeverStarted", training_job="both")
        for job in ("both", "late"):
            route.fire_named("WatchtowerEvidenceDegraded", training_job=job, source="process")
        route.fire_named("WatchtowerAgentMissing")
        route.fire_named("WatchtowerJobSlow", training_job="slow")
        slow = {("WatchtowerJobSlow", "slow")}
        wait_until(lambda: slow <= route.notified(), "the other job was notified")
        assert route.notified() == hung_and_down | slow


def test_an_error_of_a_gpu_is_not_notified_beside_the_job_that_it_hangs(tmp_path: Path):
    with routing(tmp_path) as route:
        route.fire("hung", shared_cause="node gpu-042")
        route.fire("other", shared_cause=MOUNT)
        both = {("WatchtowerJobHung", "hung"), ("WatchtowerJobHung", "other")}
        wait_until(lambda: route.notified() == both, "both jobs were notified")
        for node in ("gpu-042", "gpu-043"):
            cause = f"node {node}"
            route.fire_named("WatchtowerGpuFault", node=node, gpu="0000:3b:00", shared_cause=cause)
            route.fire_named("WatchtowerDriverStuck", node=node, shared_cause=cause)
        wait_until(lambda: len(route.notified()) == 4, "those of the other node were notified")
        nodes = {alert["labels"].get("node") for alert in route.receiver.alerts}
        assert nodes == {None, "gpu-043"}


def test_the_watchdog_goes_to_its_own_receiver(tmp_path: Path):
    with routing(tmp_path) as route:
        route.fire_named("WatchtowerWatchdog")
        wait_until(lambda: route.receiver.watchdogs, "the switch was notified")
        assert not route.groups()
