"""The files that docs/alerts.md names, with a real tower, Prometheus and Alertmanager."""

from __future__ import annotations

import contextlib
import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.certificates import make_authority
from tests.system.hung_jobs import FAST, SmallJob, reporting
from tests.system.monitoring import (
    DOCS,
    Prometheus,
    Receiver,
    free_address,
    needs_prometheus,
    receiving,
    watching,
)
from tests.towers import RunningTower, running_tower
from tests.waiting import wait_until as wait_at_most
from watchtower.access.tokens import write_token

pytestmark = [pytest.mark.e2e, needs_prometheus, pytest.mark.timeout(300)]

PUBLIC_URL = "https://tower.example/watchtower"


def wait_until(is_so: Callable[[], object], what: str) -> None:
    """Wait for what takes up to 25 s where nothing else runs."""
    wait_at_most(is_so, what, patience_s=90)


def call(url: str, body: dict[str, object] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode()


def wait_for_steps(tower: RunningTower, *jobs: SmallJob) -> None:
    """Wait until the tower knows how long a step of each job takes."""

    def have_stepped() -> bool:
        found = json.loads(call(f"{tower.url}/api/v1/jobs"))["items"]
        return len(found) == len(jobs) and all((job["step"] or 0) >= 12 for job in found)

    wait_until(have_stepped, "every job has stepped")


@contextlib.contextmanager
def fast_tower(folder: Path, port: int = 0) -> Iterator[RunningTower]:
    (folder / "tower.toml").write_text(FAST)
    words = ("--config", str(folder / "tower.toml"), "--public-url", PUBLIC_URL)
    with running_tower(folder, *words, "--port", str(port)) as tower:
        yield tower


def address_of(tower: RunningTower) -> str:
    host, port = tower.address
    return f"{host}:{port}"


def test_a_silence_or_an_ack_ends_one_alert_and_no_other(tmp_path: Path):
    a, b, c = jobs = [SmallJob(name) for name in ("llama-a", "llama-b", "llama-c")]
    with (
        fast_tower(tmp_path) as tower,
        reporting(tower.url, *jobs),
        receiving() as receiver,
        watching(tmp_path, address_of(tower), receiver) as prometheus,
    ):
        wait_for_steps(tower, *jobs)
        for job in jobs:
            job.stop()
        wait_until(lambda: len(prometheus.firing()) == 3, "an alert fires for each job")
        fired = prometheus.firing()
        assert_text_names_the_rank(tower, receiver, a, fired[a.name]["labels"]["incident"])

        call(f"{tower.url}/api/v1/silences", {"job": b.name, "for_s": 3600})
        wait_until(lambda: b.name not in prometheus.firing(), "the alert of B is silenced")
        assert set(prometheus.firing()) == {a.name, c.name}

        incident = fired[c.name]["labels"]["incident"]
        call(f"{tower.url}/api/v1/incidents/{incident}/ack", {"by": "ann"})
        wait_until(lambda: c.name not in prometheus.firing(), "the alert of C is silenced")
        for job in (b, c):
            wait_until(lambda job=job: receiver.sent("resolved", job.name), f"{job.name} ended")
        assert not receiver.sent("resolved", a.name)
        assert_same(prometheus, {a.name: fired[a.name]})

        a.resume()
        wait_until(lambda: not prometheus.firing(), "the alert of A ends with its incident")
        wait_until(lambda: receiver.sent("resolved", a.name), "the receiver has the end of A")


def assert_text_names_the_rank(
    tower: RunningTower, receiver: Receiver, job: SmallJob, incident: str
) -> None:
    wait_until(lambda: receiver.sent("firing", job.name), "the receiver has the alert")
    alert = receiver.sent("firing", job.name)[0]
    assert alert["labels"] | {"incident": ""} == {
        "alertname": "WatchtowerJobHung",
        "severity": "critical",
        "training_job": job.name,
        "incident": "",
        "kind": "hung",
        "domain": "operator",
    }
    text = alert["annotations"]
    assert (
        text["summary"]
        == f"{job.name} is hung: rank 1 on {job.node}, process_stopped. Call: operator"
    )
    assert incident in text["description"]
    assert text["url"].startswith(PUBLIC_URL)
    shown = call(text["url"].replace(PUBLIC_URL, tower.url))
    assert f"Rank 1 ({job.node}" in shown


def test_a_tower_that_restarts_ends_no_alert(tmp_path: Path):
    job = SmallJob("llama-a")
    host, port = free_address().split(":")
    address = f"{host}:{port}"
    with (
        reporting(f"http://{address}", job),
        receiving() as receiver,
        watching(tmp_path, address, receiver) as prometheus,
    ):
        with fast_tower(tmp_path, int(port)) as tower:
            wait_for_steps(tower, job)
            job.stop()
            wait_until(prometheus.firing, "an alert fires")
        fired = prometheus.firing()
        wait_until(lambda: not prometheus.is_up(), "the tower is not scraped")
        assert_same(prometheus, fired)
        with fast_tower(tmp_path, int(port)) as tower:
            wait_until(prometheus.is_up, "the tower is scraped again")
            wait_until(
                lambda: "watchtower_incident_open{" in call(f"{tower.url}/metrics"),
                "the tower exports the incident again",
            )
            assert_same(prometheus, fired)
            assert not receiver.sent("resolved", job.name)
            job.resume()
            wait_until(lambda: not prometheus.firing(), "the alert ends with its incident")


def assert_same(prometheus: Prometheus, fired: dict[str, dict[str, Any]]) -> None:
    """The same alerts fire, since the same moment; their texts may differ."""
    now = prometheus.firing()
    identities = [
        {name: (one["labels"], one["activeAt"]) for name, one in alerts.items()}
        for alerts in (now, fired)
    ]
    assert identities[0] == identities[1]


def test_a_tower_with_tokens_and_tls_is_scraped_as_the_security_page_shows(tmp_path: Path):
    authority = make_authority(tmp_path)
    cert, key = authority.sign("tower")
    token = tmp_path / "readers"
    write_token(str(token))
    page = (DOCS / "security.md").read_text("utf-8")
    (lines,) = re.findall(r"^```yaml\n(    scheme: https\n.*?)^```$", page, re.M | re.S)
    for shown, real in (("watchtower-token", token), ("watchtower-ca.pem", authority.file)):
        assert lines.count(f"/etc/prometheus/{shown}") == 1
        lines = lines.replace(f"/etc/prometheus/{shown}", str(real))
    words = ("--reader-token-file", str(token), "--tls-cert", cert, "--tls-key", key)
    with (
        running_tower(tmp_path, *words) as tower,
        receiving() as receiver,
        watching(tmp_path, address_of(tower), receiver, lines) as prometheus,
    ):
        wait_until(prometheus.is_up, "Prometheus scrapes the tower")


def test_shadow_mode_and_a_silenced_node_have_no_alert_and_two_routes_are_reported(tmp_path: Path):
    hidden, quiet, loud = jobs = [SmallJob(name) for name in ("llama-a", "llama-b", "llama-c")]
    (tmp_path / "hook").write_text("http://127.0.0.1:9/")
    port = int(free_address().rpartition(":")[2])
    hook = f'webhook_url_file = "{tmp_path / "hook"}"'
    with (
        receiving() as receiver,
        reporting(f"http://127.0.0.1:{port}", *jobs),
        watching(tmp_path, f"127.0.0.1:{port}", receiver) as prometheus,
    ):
        with tower_with(tmp_path, port, "[alerts]\nshadow = true") as tower:
            wait_for_steps(tower, *jobs)
            hidden.stop()
            open_now = "query?query=watchtower_shadow_incident_open%20%3D%3D%201"
            wait_until(lambda: prometheus.ask(open_now)["result"], "the incident is listed")
            assert json.loads(call(f"{tower.url}/api/v1/incidents"))["items"][0]["shadow"]
            (note,) = json.loads(call(f"{tower.url}/readyz"))["notes"]
            assert note.startswith("shadow mode is on")
            assert prometheus.firing() == {}
        with tower_with(tmp_path, port, f"[alerts]\n{hook}") as tower:
            call(f"{tower.url}/api/v1/silences", {"node": quiet.node, "for_s": 3600})
            wait_until(lambda: hidden.name in prometheus.firing(), "the open incident alerts")
            quiet.stop()
            loud.stop()
            wait_until(lambda: loud.name in prometheus.firing(), "another job alerts")
            wait_until(lambda: len(open_incidents(tower)) == 3, "each job has an incident")
            assert [
                one["job"] for one in open_incidents(tower) if (one["silence"] or {}).get("node")
            ] == [quiet.name]
            assert set(prometheus.firing()) == {hidden.name, loud.name}
            (note,) = json.loads(call(f"{tower.url}/readyz"))["notes"]
            assert "the tower also sends alerts to webhook" in note
        assert not receiver.sent("firing", quiet.name)


def open_incidents(tower: RunningTower) -> list[dict[str, Any]]:
    found = json.loads(call(f"{tower.url}/api/v1/incidents"))["items"]
    return [one for one in found if one["closed_at"] is None]


@contextlib.contextmanager
def tower_with(folder: Path, port: int, settings: str) -> Iterator[RunningTower]:
    (folder / "tower.toml").write_text(f"{FAST}\n{settings}\n")
    with running_tower(
        folder, "--config", str(folder / "tower.toml"), "--port", str(port)
    ) as tower:
        yield tower
