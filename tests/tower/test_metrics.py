"""The metrics of jobs and incidents: names, bounds, and labels that hold any text."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from benchmarks import junk
from tests.diagnosers import in_thread
from tests.tower.simulator import JOB, Simulation, hang
from watchtower.alerts.destinations.alertmanager import Alertmanager
from watchtower.alerts.destinations.webhook import Webhook
from watchtower.alerts.notifier import AlertNotifier
from watchtower.api import job_metrics, metrics
from watchtower.api.metrics import TowerCollector
from watchtower.api.security import Refusals
from watchtower.app import make_app
from watchtower.fleet.fleet import MAX_JOBS_PER_NODE
from watchtower.incidents.incident import NO_SHADOW, ShadowMode
from watchtower.policy import Policy
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.tower.tower import Tower
from watchtower.wire.report import RankVitals, Report
from watchtower.wire.verdict import Status
from watchtower.writing.printable import MAX_LABEL, label


def scrape(collector: TowerCollector) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Every sample by name."""
    samples: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in collector.collect():
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


def collector_of(sim: Simulation, public_url: str = "") -> TowerCollector:
    return TowerCollector(sim.tower, Refusals(), public_url)


def test_an_open_incident_has_an_identity_and_its_verdict_is_beside_it(tell):
    async def story(sim: Simulation) -> None:
        collector = collector_of(sim, "https://tower.example/wt")
        await sim.step(1)
        assert "watchtower_incident_open" not in scrape(collector)
        await hang(sim)
        incident = sim.live.incident
        identity = {"incident": incident.id, "training_job": JOB}
        frozen = {"shared_cause": "", "kind": "hung", "domain": "data", "user": ""}
        found = scrape(collector)
        assert found["watchtower_incident_open"] == [(identity | frozen, 1.0)]
        assert found["watchtower_incident_acked"] == [(identity, 0.0)]
        opened = found["watchtower_incident_opened_timestamp_seconds"]
        assert opened == [(identity, incident.opened_at)]
        ((labels, value),) = found["watchtower_incident_info"]
        assert value == 1
        assert labels == identity | {
            "cause": "dataloader_stall",
            "rank": "2",
            "node": "n1",
            "suspects": "1",
            "url": f"https://tower.example/wt/incidents/{incident.id}",
        }

        await sim.tower.acks.ack(incident.id, "ann", "")
        assert scrape(collector)["watchtower_incident_acked"] == [(identity, 1.0)]

        await sim.step(4)
        found = scrape(collector)
        assert found["watchtower_incident_open"] == [(identity | frozen, 0.0)]
        for name in ("acked", "opened_timestamp_seconds", "info"):
            assert f"watchtower_incident_{name}" not in found
        sim.world.now += job_metrics.CLOSED_SHOWN_S
        assert "watchtower_incident_open" not in scrape(collector)

    tell(story)


def test_a_job_that_starts_again_closes_its_incident(tell):
    async def story(sim: Simulation) -> None:
        collector = collector_of(sim)
        await hang(sim)
        ident = sim.live.incident.id
        scrape(collector)
        sim.world.launch(pids_from=900)
        await sim.step(12)
        assert sim.live.attempt.number == 2
        ((labels, value),) = scrape(collector)["watchtower_incident_open"]
        assert (labels["incident"], value) == (ident, 0.0)

    tell(story)


def test_without_a_suspect_or_an_address_their_labels_are_empty(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        verdict = replace(sim.live.incident.verdict, suspects=(), cause=None)
        sim.live.incident = replace(sim.live.incident, verdict=verdict)
        ((labels, _),) = scrape(collector_of(sim))["watchtower_incident_info"]
        assert labels["suspects"] == "0"
        assert [labels[key] for key in ("cause", "rank", "node", "url")] == [""] * 4

    tell(story)


def test_no_series_has_a_label_that_prometheus_gives_itself(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        for samples in scrape(collector_of(sim)).values():
            for labels, _ in samples:
                assert not {"job", "instance"} & set(labels)

    tell(story)


def test_jobs_are_bounded_and_those_with_the_oldest_incidents_stay(
    tell, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(metrics, "MAX_JOBS_SHOWN", 2)

    async def story(sim: Simulation) -> None:
        await hang(sim)
        tower = sim.tower
        for name, opened_at in (("aaa", 2.0), ("bbb", None), ("zzz", 1.0)):
            incident = None
            if opened_at is not None:
                incident = replace(
                    sim.live.incident, id=f"of-{name}", job=name, opened_at=opened_at
                )
            judgement = replace(sim.live, name=name, incident=incident)
            tower.fleet.jobs[name] = replace(tower.fleet.jobs[JOB], name=name, judgement=judgement)
        collector = collector_of(sim)
        found = scrape(collector)
        shown = [labels["training_job"] for labels, _ in found["watchtower_incident_open"]]
        assert shown == ["zzz", "aaa"]
        silenced = [labels["training_job"] for labels, _ in found["watchtower_job_silenced"]]
        assert silenced == shown
        assert found["watchtower_jobs_hidden"] == [({}, 2.0)]
        assert found["watchtower_incidents_hidden"] == [({}, 1.0)]

        last = tower.fleet.jobs["zzz"].judged
        last.incident = replace(last.incident, closed_at=3.0)
        found = scrape(collector)
        now_open = {labels["incident"]: v for labels, v in found["watchtower_incident_open"]}
        assert now_open == {"of-aaa": 1, sim.live.incident.id: 1, "of-zzz": 0}
        for name in ("aaa", "bbb", "zzz"):
            del tower.fleet.jobs[name]

    tell(story)


def test_closed_incidents_are_bounded(tell, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(job_metrics, "MAX_CLOSED_SHOWN", 2)

    async def story(sim: Simulation) -> None:
        await hang(sim)
        collector, incident = collector_of(sim), sim.live.incident
        for number in range(5):
            sim.live.incident = replace(incident, id=f"i{number}")
            scrape(collector)
        found = scrape(collector)["watchtower_incident_open"]
        assert sorted(labels["incident"] for labels, _ in found) == ["i2", "i3", "i4"]

    tell(story)


ANY_TEXT = st.one_of(
    st.text(max_size=300), st.text(st.sampled_from('ab\\<>"\n\x00\x1b\u202e\u00a0x5c'))
)


@given(one=ANY_TEXT, other=ANY_TEXT)
def test_a_label_is_printable_bounded_and_of_one_text_only(one: str, other: str):
    for text in (one, other):
        assert label(text).isprintable()
        assert len(label(text)) <= MAX_LABEL
        assert not set("<>") & set(label(text))
    assert (label(one) == label(other)) == (one == other)


@pytest.mark.parametrize("name", ["llama-70b", "team/run 7:ü?", "a" * 256, ""])
def test_an_ordinary_name_is_its_own_label(name: str):
    assert label(name) == name


def test_hostile_names_leave_the_page_readable(client: TestClient):
    client.post("/ingest/v1/report", content=junk.report("rude", junk.hostile_jobs()))
    page = client.get("/metrics").text
    names = [
        sample.labels["training_job"]
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "watchtower_job_step"
    ]
    assert set(names) == {label(name) for name in junk.HOSTILE_NAMES}
    assert len(names) == len(junk.HOSTILE_NAMES)


@pytest.mark.long
def test_processes_of_two_nodes_do_not_hide_the_jobs_of_a_third_one(tell):
    async def story(sim: Simulation) -> None:
        for node in ("bad-0", "bad-1"):
            ranks = tuple(
                RankVitals(job=f"aaa-{node}-{pid}", rank=0, pid=pid, start_time=1)
                for pid in range(1, MAX_JOBS_PER_NODE)
            )
            sim.tower.take_report(
                Report(version=1, node=node, agent_id=node, interval_s=1.0, ranks=ranks)
            )
        await sim.step(8)
        flood = len(sim.tower.fleet.jobs) - 1
        assert flood > metrics.MAX_JOBS_SHOWN
        collector = collector_of(sim)
        for is_troubled in (False, True):
            for name, keeper in sim.tower.fleet.jobs.items():
                if name != JOB and is_troubled:
                    keeper.judged.watch.status = Status.SUSPECT
            found = scrape(collector)
            shown = {labels["training_job"] for labels, _ in found["watchtower_job_step"]}
            assert JOB in shown
            assert len(shown) == metrics.MAX_JOBS_SHOWN
            assert found["watchtower_jobs_hidden"] == [({}, flood + 1 - len(shown))]
            counts = {labels["status"]: value for labels, value in found["watchtower_jobs"]}
            assert sum(counts.values()) == flood + 1
            assert counts["suspect"] == is_troubled * flood

    tell(story)


SCRAPE = {"X-Prometheus-Scrape-Timeout-Seconds": "10", "User-Agent": "Prometheus/2.42.0"}
WEBHOOK = Webhook("http://127.0.0.1:9/")
ALERTMANAGER = Alertmanager("http://127.0.0.1:9")


def scrape_twice(store: SqliteStore, destinations, headers=SCRAPE, shadow=NO_SHADOW) -> list[str]:
    """Scrape a tower twice; returns the notes of /readyz."""
    tower = Tower(Policy(), store, store.recall(), Clock(), in_thread, shadow=shadow)
    alerts = AlertNotifier(destinations, store, Clock())
    with TestClient(make_app(tower, alerts=alerts)) as client:
        for _ in range(2):
            assert client.get("/metrics", headers=headers).is_success
        return client.get("/readyz").json()["notes"]


def test_a_direct_destination_and_a_prometheus_are_two_routes(store: SqliteStore, caplog):
    (note,) = scrape_twice(store, [WEBHOOK, ALERTMANAGER])
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
def test_one_route_is_not_reported(store: SqliteStore, destinations, headers):
    assert scrape_twice(store, destinations, headers) == []


def test_in_shadow_mode_no_route_sends(store: SqliteStore):
    (note,) = scrape_twice(store, [WEBHOOK], shadow=ShadowMode(everything=True))
    assert note.startswith("shadow mode is on")
