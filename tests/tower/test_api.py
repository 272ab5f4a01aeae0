"""The API in process, with a real store on disk: posts of agents, and requests of users."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
from starlette.testclient import TestClient

from tests.diagnosers import in_thread
from tests.jobs.scenes import JOB
from tests.tower.simulator import Simulation
from tests.ui.browsing import get
from watchtower.access.tower_connection import NO_SUCH_ADDRESS
from watchtower.api import ingest
from watchtower.api.fair_turns import SLICE_BYTES, FairTurns
from watchtower.app import make_app
from watchtower.policy import Policy
from watchtower.store.sqlite import SqliteStore
from watchtower.tower import store_writer
from watchtower.tower.clock import Clock
from watchtower.tower.tower import Tower
from watchtower.wire.bounds import MAX_REPORT_BYTES
from watchtower.wire.orders import ReportReply
from watchtower.wire.report import JobLabels

MESSAGES = Path(__file__).parent.parent / "wire" / "messages"


def recorded(name: str, **changes) -> bytes:
    return json.dumps(json.loads((MESSAGES / name).read_text()) | changes).encode()


def assert_problem(response, status: int, *words: str) -> None:
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == status
    for word in words:
        assert word in body["detail"]


def test_a_report_is_answered_and_makes_a_job(client):
    response = client.post("/ingest/v1/report", content=recorded("report.json"))
    assert response.status_code == 200
    assert response.json()["version"] == 1
    view = client.get("/api/v1/jobs/llama-70b").json()
    assert view["generation"] == 1
    assert view["world_size"] == 512
    assert [rank["rank"] for rank in view["rank_states"]] == [37, 38]
    assert view["rank_states"][1]["ended"]["exception_type"] == "ValueError"


@pytest.mark.parametrize(
    "job",
    ["x/verdict", "x/silence", "verdict", "a/b/c", "/", "x%2Fverdict", "100 %?#é", "a//b", "a/"],
)
def test_a_job_of_any_name_is_shown_and_silenced(client, job):
    vitals = json.loads(recorded("report.json"))["ranks"]
    ranks = [each | {"job": name} for name in (job, "x", "b") for each in vitals]
    assert client.post("/ingest/v1/report", content=recorded("report.json", ranks=ranks)).is_success
    path = f"/api/v1/jobs/{quote(job, safe='')}"
    assert client.get(path).json()["job"] == job
    assert client.get(f"{path}/verdict").json()["job"] == job
    assert client.post("/api/v1/silences", json={"job": job, "for_s": 60}).json()["job"] == job
    assert client.get(path).json()["silence"]["job"] == job


def test_a_tower_with_a_damaged_store_begins_an_empty_one_and_reports_it(tmp_path):
    path = tmp_path / "watchtower.db"
    path.write_bytes(b"damaged by a disk " * 1000)
    store = SqliteStore(path)
    with TestClient(make_app(Tower(Policy(), store, store.recall(), Clock(), in_thread))) as client:
        ready = client.get("/readyz")
        assert ready.status_code == 200
        assert f"was damaged and is now {path}.damaged-" in ready.json()["store"]
        assert "\nwatchtower_store_set_aside 1.0\n" in client.get("/metrics").text
        assert client.post("/ingest/v1/dumps", content=recorded("dumps.json")).status_code == 200
    store.close()


def test_a_slash_in_the_name_of_a_job_need_not_be_encoded(client):
    vitals = json.loads(recorded("report.json"))["ranks"]
    ranks = [each | {"job": "team/llama"} for each in vitals]
    assert client.post("/ingest/v1/report", content=recorded("report.json", ranks=ranks)).is_success
    assert client.get("/api/v1/jobs/team/llama").json()["job"] == "team/llama"
    assert client.get("/api/v1/jobs/team/llama/verdict").json()["job"] == "team/llama"
    assert_problem(client.get("/api/v1/jobs/team%2Fother"), 404, "team/other")


@pytest.fixture
def gate(tower, monkeypatch) -> Iterator[threading.Event]:
    """Let the store's thread wait until the event is set, as on a disk that hangs."""
    monkeypatch.setattr(store_writer, "STORE_WAIT_S", 0.3)
    monkeypatch.setattr(tower.store_writer._dump_writes, "_patience_s", 0.3)
    gate = threading.Event()
    tower.store_writer.store._thread.submit(gate.wait)
    yield gate
    gate.set()


def test_while_the_disk_hangs_dumps_are_refused_and_reports_are_taken(
    tower, gate, monkeypatch, caplog
):
    monkeypatch.setattr(ingest, "MAX_HELD_DUMPS_BYTES", 3 * len(recorded("dumps.json")))
    with TestClient(make_app(tower)) as client:
        assert client.post("/ingest/v1/report", content=recorded("report.json")).status_code == 200
        for number in range(9):
            body = recorded("dumps.json", id=f"b{number % 3}")
            text = client.post("/ingest/v1/dumps", content=body)
            assert_problem(text, 503, "the dumps could not be stored")
        assert client.post("/ingest/v1/report", content=recorded("report.json")).status_code == 200
        assert (
            len(tower.store_writer.store._thread._work) < 9
        )  # it keeps no more of them than it waits for
        assert client.get("/readyz").json()["store"].startswith("fails since")
        gate.set()
        for number in range(3):
            deadline = time.monotonic() + 30
            body = recorded("dumps.json", id=f"b{number}")
            while client.post("/ingest/v1/dumps", content=body).status_code != 200:
                assert time.monotonic() < deadline


def test_dumps_that_wait_for_the_disk_take_no_room_from_reports(tower, gate, monkeypatch):
    size = len(recorded("dumps.json"))
    monkeypatch.setattr(store_writer, "STORE_WAIT_S", 30)
    monkeypatch.setattr(tower.store_writer._dump_writes, "_patience_s", 30)
    monkeypatch.setattr(ingest, "MAX_HELD_DUMPS_BYTES", 2 * size + 1)  # of which one address: half
    with TestClient(make_app(tower)) as client:
        body, answers = recorded("dumps.json"), []
        wait = threading.Thread(
            target=lambda: answers.append(client.post("/ingest/v1/dumps", content=body))
        )
        wait.start()
        deadline = time.monotonic() + 30
        while not tower.store_writer._dump_writes._writes:
            assert time.monotonic() < deadline
        assert_problem(client.post("/ingest/v1/dumps", content=body), 503, "too many bodies")
        assert client.post("/ingest/v1/report", content=recorded("report.json")).status_code == 200
        gate.set()
        wait.join(30)
        assert answers[0].status_code == 200


def test_a_report_of_a_newer_release_is_taken(client):
    message = json.loads(recorded("report.json"))
    message["ranks"][0]["state"] = "P"
    message["moon"] = "full"
    assert client.post("/ingest/v1/report", json=message).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, ["not JSON"]),
        (b"{", 400, ["not JSON"]),
        (b"\xff\xfe", 400, ["not JSON"]),
        (b"[" * 100_000, 422, ["Expected `object`"]),
        (b'{"version": 1, "limits": ' + b"[" * 100_000, 400, ["not JSON"]),
        (b"[]", 422, ["Expected `object`"]),
        (b"{}", 422, ["version"]),
        (recorded("report.json", version=2), 400, ["`version` is 2", "needs 1"]),
        (recorded("report.json", node=7), 422, ["$.node"]),
        (recorded("report.json", ranks=[{"rank": -5}]), 422, ["$.ranks[0]"]),
    ],
)
def test_an_invalid_report_is_refused_with_the_reason(client, body, status, words):
    assert_problem(client.post("/ingest/v1/report", content=body), status, *words)


def test_an_oversized_body_is_refused_before_it_is_read(client):
    response = client.post(
        "/ingest/v1/report", content=b"x", headers={"content-length": str(10**12)}
    )
    assert_problem(response, 413, str(MAX_REPORT_BYTES))


def test_an_oversized_body_without_a_length_is_refused_too(client):
    def endless():
        for _ in range(MAX_REPORT_BYTES // 65536 + 2):
            yield b" " * 65536

    assert_problem(client.post("/ingest/v1/report", content=endless()), 413)


def test_dumps_are_acknowledged_when_they_are_stored(client, tower):
    client.post("/ingest/v1/report", content=recorded("report.json"))
    response = client.post("/ingest/v1/dumps", content=recorded("dumps.json"))
    assert response.json() == {"id": "gpu-042-1"}
    record = tower.fleet.jobs["llama-70b"].attempt.ranks[37]
    assert len(record.dumps) == 1


def test_dumps_of_a_job_that_was_not_reported_are_stored(client):
    assert client.post("/ingest/v1/dumps", content=recorded("dumps.json")).status_code == 200


@pytest.mark.parametrize(
    "path", ["/api/v1/jobs/none", "/api/v1/jobs/none/verdict", "/api/v1/incidents/none", "/nope"]
)
def test_an_unknown_path_gets_a_problem_document(client, path):
    assert_problem(client.get(path), 404, "none" if "none" in path else path)


def test_a_wrong_method_and_a_wrong_parameter_are_problems(client):
    refused = client.delete("/api/v1/jobs")
    assert_problem(refused, 405, "DELETE is not allowed")
    assert refused.headers["allow"] == "GET"
    assert client.put("/api/v1/silences", json={}).headers["allow"] == "GET, POST"
    assert_problem(client.get("/api/v1/incidents?limit=0"), 422, "`limit`")
    refused = client.get("/ingest/v1/dumps")
    assert_problem(refused, 405)
    assert refused.headers["allow"] == "POST"


def test_a_healthy_job_has_a_healthy_verdict_in_every_shape(tell):
    async def story(sim: Simulation) -> None:
        await sim.step(10)
        sim.tower.fleet.jobs[JOB].labels = JobLabels(
            job=JOB, scheduler="slurm", scheduler_id="48213", user="alice"
        )
        app, path = make_app(sim.tower), f"/api/v1/jobs/{JOB}/verdict"
        verdict = json.loads((await get(app, path)).body)
        known = {name: verdict[name] for name in ("status", "cause", "incident", "not_judged")}
        assert known == {"status": "healthy", "cause": None, "incident": None, "not_judged": None}
        for shape in ("text", "markdown", "slack"):
            page = (await get(app, f"{path}?format={shape}")).body
            assert f"{JOB}: healthy" in page
            assert len(page.splitlines()) <= 15
            assert "owner: alice (slurm 48213)" in page
        blocks = json.loads((await get(app, f"{path}?format=slack-blocks")).body)
        assert blocks["blocks"][0]["text"]["text"] == f"*{JOB}: healthy*"

    tell(story)


def test_an_unknown_shape_of_a_verdict_is_refused(client):
    client.post("/ingest/v1/report", content=recorded("report.json"))
    assert_problem(client.get("/api/v1/jobs/llama-70b/verdict?format=fax"), 422, "`format`")


def test_a_job_name_may_hold_anything(client):
    message = json.loads(recorded("report.json"))
    name = "team/run 7:ü?"
    for rank in message["ranks"]:
        rank["job"] = name
    client.post("/ingest/v1/report", json=message)
    quoted = "team%2Frun%207%3A%C3%BC%3F"
    assert client.get(f"/api/v1/jobs/{quoted}").json()["job"] == name
    assert client.get(f"/api/v1/jobs/{quoted}/verdict").json()["job"] == name


def test_the_tower_is_alive_and_ready_and_says_what_agents_cannot_do(client):
    message = json.loads(recorded("report.json"))
    message["limits"] = {"python_stacks": "py-spy is not installed", "spool": "the disk is full"}
    client.post("/ingest/v1/report", json=message)
    assert client.get("/healthz").json() == {"status": "alive"}
    ready = client.get("/readyz").json()
    assert ready["ready"] is True
    assert ready["limits"] == ["gpu-042: py-spy is not installed", "gpu-042: the disk is full"]


def test_metrics_are_those_of_the_jobs(client):
    client.post("/ingest/v1/report", content=recorded("report.json"))
    page = client.get("/metrics").text
    assert 'watchtower_job_status{status="hung",training_job="llama-70b"} 0.0' in page
    assert "watchtower_reports_total 1.0" in page


def test_the_openapi_document_promises_problems_not_the_frameworks_errors(client):
    document = client.get("/openapi.json").json()
    assert "/api/v1/jobs/{job}/verdict" in document["paths"]
    assert "HTTPValidationError" not in json.dumps(document)
    assert "application/problem+json" in json.dumps(document)


def test_a_failure_of_one_job_does_not_stop_the_others(tower, client):
    message = json.loads(recorded("report.json"))
    client.post("/ingest/v1/report", json=message)
    healthy = [message["ranks"][0] | {"job": "other"}]
    client.post("/ingest/v1/report", json=message | {"node": "n2", "ranks": healthy})
    client.portal.call(tower.tick)
    tower.fleet.jobs["llama-70b"].judged.watch = None  # broken state, whatever broke it
    client.portal.call(tower.tick)
    assert tower.counters.failed_ticks >= 1
    assert client.get("/api/v1/jobs/other/verdict").json()["job"] == "other"


def test_replies_are_readable_by_agents(client):
    body = client.post("/ingest/v1/report", content=recorded("report.json")).content
    assert msgspec.json.decode(body, type=ReportReply).version


def test_a_report_is_taken_before_dumps_that_wait_for_their_turn():
    async def play() -> list[str]:
        turns, taken = FairTurns(), []

        async def take_dumps() -> None:
            await turns.wait("a", SLICE_BYTES, 0.0)
            taken.append("dumps")

        async def take_report() -> None:
            taken.append("report")

        dumps = [asyncio.create_task(take_dumps()) for _ in range(100)]
        await asyncio.sleep(0)
        await asyncio.gather(*dumps, asyncio.create_task(take_report()))
        return taken

    assert "report" in asyncio.run(play())[:2]


def test_an_address_that_the_tower_does_not_have_is_no_missing_job(client):
    assert client.get("/foo/api/v1/jobs").json()["title"] == NO_SUCH_ADDRESS
    assert client.get("/api/v1/jobs/nosuch").json()["title"] == "Not found"


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("limit=0", "`limit` must be 1 or more"),
        ("limit=1001", "`limit` must be 1000 or less"),
        ("limit=x", "`limit` must be a whole number"),
        ("drills=2", "`drills` must be true or false"),
    ],
)
def test_a_wrong_parameter_is_described_in_our_words(client, query, text):
    assert_problem(client.get(f"/api/v1/incidents?{query}"), 422, text)
