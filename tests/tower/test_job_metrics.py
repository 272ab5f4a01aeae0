"""Metrics of jobs and of the tower's own work: values, bounds, and when series end."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from starlette.testclient import TestClient

from tests.diagnosers import InThread
from tests.jobs.scenes import JOB, World
from tests.store.builders import an_incident
from tests.tower.simulator import Simulation, hang
from watchtower.api.metric_table import TOWER_METRICS
from watchtower.api.metrics import MAX_SILENT_SHOWN, Scraper, TowerCollector
from watchtower.api.security import Refusals
from watchtower.diagnoser.messages import Answer, Request
from watchtower.diagnoser.process import DiagnoserDiedError
from watchtower.incidents.incident import IncidentKind
from watchtower.service.metric_spec import MetricKind
from watchtower.tower.counters import Counters, Durations
from watchtower.views.measures import PLACES
from watchtower.wire.report import EndingKind, Report
from watchtower.wire.verdict import Cause, Domain, Status, Suspect

SERIES_OF_A_JOB, SERIES_OF_AN_INCIDENT = 51, 21


def collect(sim: Simulation) -> dict[str, Metric]:
    """The families of one scrape, by the name of the metric."""
    families = TowerCollector(sim.tower, Refusals()).collect()
    return {f"{f.name}_total" if f.type == "counter" else f.name: f for f in families}


def values(sim: Simulation, name: str, label: str = "training_job") -> dict[str, float]:
    """The values of one metric, by one label."""
    samples = collect(sim)[name].samples
    return {sample.labels.get(label, ""): sample.value for sample in samples}


def test_a_scrape_has_the_declared_metrics_with_their_labels(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        found = collect(sim)
        assert found.keys() == {spec.name for spec in TOWER_METRICS}
        for spec in TOWER_METRICS:
            assert found[spec.name].type == spec.kind.value
            for sample in found[spec.name].samples:
                inner = {"le"} if spec.kind is MetricKind.HISTOGRAM else set()
                assert set(sample.labels) - inner == set(spec.labels)

    tell(story)


def test_a_slow_job_shows_how_much_its_slow_rank_and_the_median_rank_wait(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(12)
        await sim.step(4, step_s=3.0)
        assert values(sim, "watchtower_job_wait_ratio") == {}  # slow, and not sampled yet
        for _ in range(6):
            await sim.dump(behind=2)
            await sim.step(3, step_s=3.0)
        assert sim.verdict.cause is Cause.STRAGGLER
        assert values(sim, "watchtower_job_wait_ratio", "percentile") == {"50": 1.0}
        assert values(sim, "watchtower_rank_wait_ratio", "rank") == {"2": 0.0}
        await sim.step(12)
        assert values(sim, "watchtower_rank_wait_ratio", "rank") == {}

    tell(story)


def ranks_by_place(sim: Simulation) -> dict[str, float]:
    found = values(sim, "watchtower_job_ranks", "place")
    assert len(found) == len(PLACES)
    return {place: count for place, count in found.items() if count}


def test_a_job_steps_hangs_and_recovers(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        assert values(sim, "watchtower_job_state") == {JOB: 0}
        assert values(sim, "watchtower_job_world_size") == {JOB: 4}
        assert values(sim, "watchtower_job_attempt") == {JOB: 1}
        assert 8 <= values(sim, "watchtower_job_steps_total")[JOB] <= 10
        assert values(sim, "watchtower_job_step_seconds", "percentile") == {"50": 1, "95": 1}
        assert values(sim, "watchtower_job_lag_ranks", "lag")["0"] == 4
        assert values(sim, "watchtower_job_phase_ranks", "phase") == {"training": 4, "other": 0}
        assert values(sim, "watchtower_job_lost_seconds_total") == {JOB: 0}
        assert ranks_by_place(sim) == {"working": 4}
        await sim.report(6)
        await sim.dump(behind=2)
        await sim.report(12)
        assert values(sim, "watchtower_job_state") == {JOB: 6}
        assert ranks_by_place(sim) == {"waiting": 3, "elsewhere": 1}
        lost = values(sim, "watchtower_job_lost_seconds_total")[JOB]
        assert 17 <= lost <= 19
        assert values(sim, "watchtower_lost_gpu_seconds_total") == {"": 4 * lost}
        await sim.step(20)
        lost = values(sim, "watchtower_job_lost_seconds_total")[JOB]
        assert lost < 24
        assert 36 <= values(sim, "watchtower_job_watched_seconds_total")[JOB] <= 50
        assert values(sim, "watchtower_lost_gpu_seconds_total") == {"": 4 * lost}

    tell(story)


def test_an_incident_counts_for_its_cause_and_its_first_suspects_are_named(tell):
    async def story(sim: Simulation) -> None:
        assert set(values(sim, "watchtower_incidents_total", "cause").values()) == {0.0}
        await hang(sim)
        found = values(sim, "watchtower_incidents_total", "cause")
        assert found.keys() == {cause.value for cause in Cause}
        assert {cause for cause, count in found.items() if count} == {"dataloader_stall"}
        (sample,) = collect(sim)["watchtower_incident_suspect"].samples
        incident = sim.live.incident
        assert sample.labels == {"incident": incident.id, "rank": "2", "node": "n1", "gpu": ""}
        suspects = tuple(
            Suspect(rank=rank, node="n", cause=Cause.UNKNOWN, why="", gpu=rank % 8)
            for rank in range(9000)
        )
        verdict = replace(incident.verdict, suspects=suspects)
        sim.live.incident = replace(incident, verdict=verdict)
        assert values(sim, "watchtower_incident_suspect", "rank").keys() == {
            str(rank) for rank in range(16)
        }
        assert values(sim, "watchtower_incident_suspect", "gpu").keys() == set("01234567")

    tell(story)


def test_incidents_of_drills_are_not_counted():
    counters = Counters()
    counters.count_incident(an_incident(job="drill:x"))
    assert counters.incidents.total() == 0
    counters.count_incident(an_incident())
    assert counters.incidents.total() == 1


def test_an_ended_job_has_no_groups_of_ranks_and_a_forgotten_one_no_series(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        for rank in sim.world.ranks:
            sim.world.end(rank)
        await sim.report(20)
        assert sim.live.watch.status is Status.ENDED
        for name in ("state", "lag_ranks", "phase_ranks", "ranks", "evidence_ratio"):
            assert not collect(sim)[f"watchtower_job_{name}"].samples
        assert values(sim, "watchtower_job_world_size") == {JOB: 4}
        sim.world.now += 3700
        sim.tower.tick()
        for name, family in collect(sim).items():
            assert not [s for s in family.samples if "training_job" in s.labels], name
        assert JOB not in sim.tower.fleet.jobs

    tell(story)


def test_a_large_job_has_few_series(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        for number, record in enumerate(sim.attempt.ranks.values()):
            beat = replace(record.vitals.beat, phase=f"phase {number}", step=number)
            record.vitals = replace(record.vitals, beat=beat)
        suspects = tuple(Suspect(rank=r, node="n", cause=Cause.UNKNOWN, why="") for r in range(64))
        verdict = replace(sim.live.incident.verdict, suspects=suspects)
        sim.live.incident = replace(sim.live.incident, verdict=verdict)
        count = sum(
            1
            for family in collect(sim).values()
            for sample in family.samples
            if {"training_job", "incident"} & set(sample.labels)
        )
        # Without labels and GPUs, a job has two series less.
        assert count == SERIES_OF_A_JOB - 2 + SERIES_OF_AN_INCIDENT
        page = (Path(__file__).parents[2] / "docs/metrics.md").read_text("utf-8")
        assert f"at most {SERIES_OF_A_JOB} series" in page
        assert f"{SERIES_OF_AN_INCIDENT} more for an open" in page

    tell(story, World(size=64))


def test_silent_agents_have_names_and_those_that_reported_last_come_first(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(2)
        assert values(sim, "watchtower_agent_silent", "node") == {}
        for number in range(MAX_SILENT_SHOWN + 4):
            node = f"n-{number:02d}"
            sim.tower.take_report(Report(version=1, node=node, agent_id=node, interval_s=1.0))
            sim.world.now += 0.1
        sim.world.now += 100
        await sim.report(1)
        assert values(sim, "watchtower_agents_silent") == {"": MAX_SILENT_SHOWN + 4}
        assert values(sim, "watchtower_agent_silent", "node") == {
            f"n-{number:02d}": 1 for number in range(4, MAX_SILENT_SHOWN + 4)
        }

    tell(story)


class Dying(InThread):
    def ask(self, request: Request, *, brief: bool = False) -> Answer:
        raise DiagnoserDiedError("it used too much memory")


def test_diagnoses_are_timed_and_killed_ones_counted(tell):
    async def story(sim: Simulation) -> None:
        await hang(sim)
        assert values(sim, "watchtower_diagnoses_killed_total") == {"": 0}
        counts = values(sim, "watchtower_diagnosis_duration_seconds", "le")
        assert counts["+Inf"] >= 1

    tell(story)


def test_a_killed_diagnosis_is_counted(tell):
    async def story(sim: Simulation) -> None:
        sim.start_diagnoser = Dying
        await sim.restart_tower()
        await sim.step(10)
        await sim.report(6)
        await sim.dump(behind=2)
        await sim.report(3)
        assert values(sim, "watchtower_diagnoses_killed_total")[""] >= 1
        assert values(sim, "watchtower_diagnosis_duration_seconds", "le")["+Inf"] == 0

    tell(story)


def test_replies_to_agents_are_timed_by_path(client: TestClient):
    client.post("/ingest/v1/report", content=b"{}")
    client.post("/ingest/v1/nothing", content=b"{}")
    page = client.get("/metrics").text
    assert 'watchtower_reply_seconds_count{path="/ingest/v1/report"} 1.0' in page
    assert 'watchtower_reply_seconds_count{path="/ingest/v1/dumps"} 0.0' in page
    assert "nothing" not in page


@pytest.mark.parametrize(
    ("seconds", "counts"), [((), [0, 0, 0]), ((0.1, 1.0, 5.0), [1, 2, 3]), ((9.0,), [0, 0, 1])]
)
def test_durations_are_counted_up_to_each_bound(seconds: tuple[float, ...], counts: list[float]):
    durations = Durations((0.5, 1.0))
    for each in seconds:
        durations.observe(each)
    assert durations.cumulated() == list(zip(["0.5", "1", "+Inf"], counts, strict=True))
    assert durations.total_s == sum(seconds)


def test_a_page_of_many_jobs_is_made_beside_the_event_loop(tell):
    """A scrape lets other work run between jobs, and a job that ends meanwhile does no harm."""

    async def story(sim: Simulation) -> None:
        await hang(sim)
        collector = TowerCollector(sim.tower, Refusals())
        expected = generate_latest(collector)
        page = await Scraper(collector).scrape()
        assert page.startswith(expected[: expected.index(b"watchtower_tick_age")])
        assert b"process_" in page
        pages = await asyncio.gather(*(Scraper(collector).scrape() for _ in range(3)))
        assert len(pages) == 3
        incident = sim.live.incident
        sim.live.incident = None
        measuring = collector.measure()
        assert next(measuring) is None
        sim.live.incident = replace(incident, id="01NEW")
        *_, snapshot = measuring
        samples = [s for f in collector.make(snapshot) for s in f.samples]
        opened = [s for s in samples if s.name == "watchtower_incident_open"]
        assert {s.labels["incident"]: s.value for s in opened} == {incident.id: 0, "01NEW": 1}
        assert len(opened) == 2
        sim.live.incident = incident
        measuring = collector.measure()
        assert next(measuring) is None
        keeper = sim.tower.fleet.jobs.pop(JOB)
        *_, snapshot = measuring
        assert not snapshot.jobs
        sim.tower.fleet.jobs[JOB] = keeper

    tell(story)


def test_the_share_of_ranks_with_evidence(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(5)
        name = "watchtower_job_evidence_ratio"
        assert values(sim, name, "source") == {"process": 1, "heartbeat": 1}
        record = next(iter(sim.attempt.ranks.values()))
        record.vitals = replace(record.vitals, beat=None)
        assert values(sim, name, "source") == {"process": 1, "heartbeat": 0.75}
        record.seen_at -= 1000
        assert values(sim, name, "source") == {"process": 0.75, "heartbeat": 1}
        sim.world.now += 100
        assert values(sim, name, "source") == {"process": 0}

    tell(story)


def test_in_a_stall_the_stacks_that_are_in_count(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        await sim.report(6)
        name = "watchtower_job_evidence_ratio"
        assert values(sim, name, "source")["stacks"] == 0
        await sim.dump(behind=2)
        await sim.report(1)
        shares = values(sim, name, "source")
        assert shares["stacks"] == shares["kernel_log"] == 1
        assert shares["collective_log"] == 0
        assert "gpu" not in shares
        await sim.step(10)
        assert "stacks" not in values(sim, name, "source")
        for rank in sim.world.ranks:
            sim.world.end(rank)
        await sim.report(20)
        assert not values(sim, name, "source")

    tell(story)


def test_a_job_that_a_node_or_a_gpu_ended_is_exported_for_ten_minutes(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        for rank in range(4):
            sim.world.end(rank, EndingKind.SIGNAL, int(signal.SIGSEGV))
        await sim.report(10)
        incident = sim.live.incident
        assert incident.identity.kind is IncidentKind.ENDED
        assert values(sim, "watchtower_incident_ended") == {}  # its owner reads the traceback
        identity = replace(incident.identity, domain=Domain.NODE)
        sim.live.incident = replace(incident, identity=identity)
        assert values(sim, "watchtower_incident_ended") == {JOB: 1}
        assert values(sim, "watchtower_incident_ended", "domain") == {"node": 1}
        assert values(sim, "watchtower_incident_info", "incident") == {incident.id: 1}
        assert values(sim, "watchtower_incident_open") == {}
        sim.live.incident = replace(sim.live.incident, closed_at=incident.closed_at - 601)
        assert values(sim, "watchtower_incident_ended") == {}

    tell(story)
