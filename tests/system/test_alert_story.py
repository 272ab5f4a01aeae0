"""From a hang to a webhook and back, told as timelines: a real tower, real HTTP, kill -9."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.alerts.receivers import Receiver, receiving
from tests.system.hung_jobs import FAST, PATIENT, SmallJob, reporting
from tests.system.monitoring import free_address
from tests.towers import RunningTower, running_tower
from tests.waiting import wait_until as wait_at_most
from watchtower.commands.client import NotFoundError, TowerClient
from watchtower.drills.environment import Environment
from watchtower.drills.job import TrainingJob
from watchtower.drills.launching import Layout
from watchtower.drills.settings import read_config

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

CONFIG = read_config(Path(__file__).parent / "e2e" / "fast.toml")

DIRECT_S = 1.0
"""Longest time from the opening of an incident to its alert on a machine with free processors."""

BUSY = 5.0
"""How much longer it may take where other tests run."""


def wait_until(is_so: Callable[[], object], what: str) -> None:
    wait_at_most(is_so, what, patience_s=180)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


def configure(folder: Path, receiver: Receiver) -> str:
    """Return the table of a configuration that sends alerts to the receiver."""
    secret = folder / "webhook-url"
    secret.write_text(f"{receiver.url}\n")
    secret.chmod(0o600)
    return f'\n[alerts]\nwebhook_url_file = "{secret}"\n'


class Alerting(Environment):
    """A tower that sends alerts to a receiver, and agents."""

    def __init__(self, folder: Path, receiver: Receiver) -> None:
        super().__init__(
            folder,
            nodes=2,
            interval_s=CONFIG.drill.agent_interval_s,
            detection={**CONFIG.detection, **PATIENT},
            forwarded=False,
            start_deadline_s=60.0,
        )
        self._alerts = configure(folder, receiver)

    def _write_config(self) -> Path:
        path = super()._write_config()
        path.write_text(path.read_text("utf-8") + self._alerts, "utf-8")
        return path


@pytest.fixture
def job(tmp_path: Path, receiver: Receiver) -> Iterator[TrainingJob]:
    """A real job of four ranks, of which rank 2 hangs."""
    job = TrainingJob("llama", "stdlib", Layout(ranks=4, nodes=2), tmp_path)
    with Alerting(tmp_path, receiver) as environment:
        client = TowerClient(environment.tower_url)
        job.launch({"step_s": 0.2, "jitter": 0.15})
        with contextlib.ExitStack() as stack:
            stack.callback(job.end)

            def has_stepped() -> bool:
                job.poll()
                with contextlib.suppress(NotFoundError):
                    return (client.verdict("llama")["step"] or 0) >= 10
                return False

            wait_until(has_stepped, "the job makes steps")
            job.signal(2, signal.SIGSTOP)
            yield job


@pytest.mark.ptrace
def test_an_alert_arrives_at_once_and_ends_with_its_incident(job: TrainingJob, receiver: Receiver):
    wait_until(lambda: receiver.alerts, "the alert arrives")
    alert = receiver.alerts[0]
    took_s = receiver.arrivals[0] - unix_time(alert["startsAt"])
    print(f"from the opening of the incident to the webhook: {took_s:.3f} s")
    assert 0 <= took_s < DIRECT_S * BUSY
    assert alert["labels"] == {
        "alertname": "WatchtowerJobHung",
        "severity": "critical",
        "training_job": "llama",
        "incident": alert["labels"]["incident"],
        "kind": "hung",
        "domain": alert["labels"]["domain"],
    }
    assert "rank 2 on drill-b" in alert["annotations"]["summary"]

    job.signal(2, signal.SIGCONT)
    wait_until(lambda: ends(receiver), "the alert ends")
    assert_one_alert(receiver)
    assert receiver.alerts[-1]["annotations"]["state"] == "recovered"


@pytest.mark.ptrace
def test_the_alert_of_a_job_that_is_killed_ends_once_with_what_happened(
    job: TrainingJob, receiver: Receiver
):
    wait_until(lambda: receiver.alerts, "the alert arrives")
    job.signal_all(signal.SIGKILL)

    def is_over() -> bool:
        job.poll()
        return bool(ends(receiver))

    wait_until(is_over, "the alert ends")
    time.sleep(2)
    assert_one_alert(receiver)
    text = receiver.alerts[-1]["annotations"]["description"]
    assert "SIGKILL" in text
    assert "rank 2" in text


@dataclass(frozen=True)
class StoredAlert:
    alert: dict[str, Any]
    version: int
    delivered: int


class Fleet:
    """Small jobs of simulated agents that report to one address, on which towers come and go."""

    def __init__(self, folder: Path, receiver: Receiver, *names: str) -> None:
        self.jobs = {name: SmallJob(name) for name in names}
        self.receiver = receiver
        self._address, self._folder = free_address(), folder
        self.url = f"http://{self._address}"
        (folder / "tower.toml").write_text(FAST + configure(folder, receiver))

    @contextlib.contextmanager
    def tower(self) -> Iterator[RunningTower]:
        """Run a tower on the same data; kill -9 at the end."""
        port = self._address.rpartition(":")[2]
        words = ("--config", str(self._folder / "tower.toml"), "--port", port)
        with running_tower(self._folder, *words) as tower:
            yield tower

    def call(self, path: str, body: dict[str, object] | None = None) -> Any:
        """Return the reply of the tower's API."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=10) as reply:
            return json.load(reply)

    def wait_until_stored(self, is_so: Callable[[list[StoredAlert]], bool], what: str) -> None:
        """Wait until the file of the tower has the alerts: a kill -9 loses what is not in it."""
        path = self._folder / "data" / "watchtower.db"

        def is_stored() -> bool:
            with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
                rows = db.execute("SELECT alert, version, delivered FROM alerts").fetchall()
            return is_so([StoredAlert(json.loads(alert), *numbers) for alert, *numbers in rows])

        wait_until(is_stored, what)

    def wait_until_delivered(self) -> None:
        """Wait until the tower has stored that the receiver has every alert."""
        self.wait_until_stored(
            lambda alerts: all(one.version == one.delivered for one in alerts),
            "the delivery is stored",
        )

    def wait_for_steps(self) -> None:
        """Wait until the tower knows how long a step of each job takes."""

        def have_stepped() -> bool:
            found = self.call("/api/v1/jobs")["items"]
            return len(found) == len(self.jobs) and all((job["step"] or 0) >= 12 for job in found)

        wait_until(have_stepped, "every job has stepped")

    def wait_for_status(self, name: str, *statuses: str) -> None:
        """Wait until the verdict of a job has one of the statuses."""

        def has_status() -> bool:
            return self.call(f"/api/v1/jobs/{name}/verdict")["status"] in statuses

        wait_until(has_status, f"{name} is {' or '.join(statuses)}")


@pytest.fixture
def fleet(tmp_path: Path, receiver: Receiver) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, receiver, "llama")
    with reporting(fleet.url, *fleet.jobs.values()):
        yield fleet


def test_a_tower_that_is_killed_before_and_after_the_delivery_sends_one_alert(fleet: Fleet):
    receiver, job = fleet.receiver, fleet.jobs["llama"]
    receiver.status = 503
    with fleet.tower():
        fleet.wait_for_steps()
        job.stop()
        wait_until(lambda: receiver.requests, "the alert is refused")
    assert not receiver.accepted
    receiver.status = 200
    with fleet.tower():
        wait_until(lambda: receiver.alerts, "the alert arrives after the kill")
        fleet.wait_until_delivered()
    with fleet.tower():
        fleet.wait_for_status("llama", "hung")
        time.sleep(1)
    job.resume()  # while no tower runs
    with fleet.tower():
        wait_until(lambda: ends(receiver), "the alert ends")
        fleet.wait_until_delivered()
    with fleet.tower():
        fleet.wait_for_status("llama", "healthy", "recovered")
        time.sleep(1)
    assert_one_alert(receiver)


def test_a_tower_that_is_killed_during_a_delivery_repeats_it_with_the_same_key(fleet: Fleet):
    """The receiver has accepted the alert, but the tower has not seen the reply."""
    receiver, job = fleet.receiver, fleet.jobs["llama"]
    receiver.reply_delay_s = 3.0
    with fleet.tower():
        fleet.wait_for_steps()
        job.stop()
        wait_until(lambda: receiver.alerts, "the receiver accepts the alert")
    receiver.reply_delay_s = 0.0
    with fleet.tower():
        wait_until(lambda: len(receiver.keys) > 1, "the alert is repeated")
        job.resume()
        wait_until(lambda: ends(receiver), "the alert ends")
    first, second, *_ = receiver.alerts
    assert receiver.keys[0] == receiver.keys[1]
    assert first == second
    del receiver.keys[0], receiver.accepted[0]
    assert_one_alert(receiver)


def test_a_receiver_that_was_down_for_the_whole_incident_gets_its_end_only(fleet: Fleet):
    receiver, job = fleet.receiver, fleet.jobs["llama"]
    receiver.status = 503
    with fleet.tower():
        fleet.wait_for_steps()
        job.stop()
        wait_until(lambda: receiver.requests, "the alert is refused")
        job.resume()
        fleet.wait_until_stored(
            lambda alerts: [one.alert["facts"]["state"] for one in alerts] == ["recovered"],
            "the end of the incident is stored",
        )
        receiver.status = 200
        wait_until(lambda: receiver.alerts, "the receiver has a message")
        time.sleep(2)
    (only,) = receiver.alerts
    assert only["status"] == "resolved"
    assert only["annotations"]["summary"].startswith("[RECOVERED] llama")


def test_a_silence_suppresses_the_alert_of_its_job_and_no_other(tmp_path: Path, receiver: Receiver):
    fleet = Fleet(tmp_path, receiver, "llama", "other", "silenced")
    with reporting(fleet.url, *fleet.jobs.values()):
        with fleet.tower():
            fleet.wait_for_steps()
            fleet.call("/api/v1/silences", {"job": "silenced", "for_s": 3600})
            fleet.jobs["llama"].stop()
            fleet.jobs["silenced"].stop()
            wait_until(lambda: receiver.alerts, "the alert arrives")
            fleet.wait_until_delivered()
            fleet.call("/api/v1/silences", {"job": "other", "for_s": 3600})
            fleet.wait_for_status("silenced", "hung")
            time.sleep(2)
        with fleet.tower():  # the silence is known before the alerts of open incidents are sent
            fleet.wait_for_status("silenced", "hung")
            time.sleep(2)
            fleet.jobs["llama"].resume()
            fleet.jobs["silenced"].resume()
            wait_until(lambda: ends(receiver), "the alert ends")
            fleet.wait_for_status("silenced", "healthy", "recovered")
            time.sleep(2)
    assert {alert["labels"]["training_job"] for alert in receiver.alerts} == {"llama"}
    assert_one_alert(receiver)


def unix_time(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def ends(receiver: Receiver) -> list[dict[str, Any]]:
    return [alert for alert in receiver.alerts if alert["status"] == "resolved"]


def assert_one_alert(receiver: Receiver) -> None:
    """One alert with one identity, in order, that ends once, and no message twice."""
    assert len({json.dumps(alert["labels"]) for alert in receiver.alerts}) == 1
    assert [alert["status"] for alert in receiver.alerts].count("resolved") == 1
    assert receiver.alerts[-1]["status"] == "resolved"
    assert len(set(receiver.keys)) == len(receiver.keys), receiver.keys
