"""Labels of jobs, and jobs of drills, in lists and metrics."""

from __future__ import annotations

import json

from tests.tower.test_api import recorded
from watchtower.incidents.incident import Incident
from watchtower.tower.clock import Clock
from watchtower.tower.health import describe_state
from watchtower.wire.bounds import MAX_NAME
from watchtower.wire.drills import is_drill, mark_drill
from watchtower.wire.verdict import Cause, Status, Verdict


def test_only_an_agent_with_a_rank_of_a_job_labels_it(client):
    """Alerts go to the user in the labels, so that another agent must not choose this user."""
    report = json.loads(recorded("report.json"))
    (labels,) = report["jobs"]
    forged = [{**labels, "user": "mallory"}]
    assert client.post("/ingest/v1/report", json={**report, "jobs": []}).is_success
    other = {**report, "agent_id": "other", "ranks": [], "jobs": forged}
    for node in (report["node"], "n9"):
        assert client.post("/ingest/v1/report", json={**other, "node": node}).is_success
    claims = {**other, "ranks": report["ranks"]}  # the same processes, under the node's name
    assert client.post("/ingest/v1/report", json=claims).is_success
    assert client.get("/api/v1/jobs").json()["items"][0]["labels"] in (None, {})
    assert client.post("/ingest/v1/report", json=report).is_success
    assert client.get("/api/v1/jobs").json()["items"][0]["labels"]["user"] == "alice"


def test_a_job_has_the_labels_of_its_scheduler(client):
    assert client.post("/ingest/v1/report", content=recorded("report.json")).is_success
    labels = {
        "scheduler": "slurm",
        "scheduler_id": "48213",
        "name": "llama-70b-pt",
        "user": "alice",
        "partition": "train",
    }
    assert client.get("/api/v1/jobs").json()["items"][0]["labels"] == labels
    assert client.get("/api/v1/jobs/llama-70b").json()["labels"] == labels
    series = (
        'watchtower_job_info{name="llama-70b-pt",namespace="",partition="train",scheduler="slurm",'
        'scheduler_id="48213",training_job="llama-70b",user="alice"} 1.0'
    )
    assert series in client.get("/metrics").text


def test_the_first_labels_of_a_job_stay_and_those_of_no_job_are_left_out(client):
    message = json.loads(recorded("report.json"))
    client.post("/ingest/v1/report", json=message)
    (labels,) = message["jobs"]
    message["jobs"] = [labels | {"name": "x"}, labels | {"job": "other"}]
    assert client.post("/ingest/v1/report", json=message).is_success
    (job,) = client.get("/api/v1/jobs").json()["items"]
    assert job["labels"]["name"] == "llama-70b-pt"


def test_labels_are_bounded(client):
    message = json.loads(recorded("report.json"))
    message["jobs"][0]["user"] = "x" * (MAX_NAME + 1)
    refused = client.post("/ingest/v1/report", json=message)
    assert (refused.status_code, "user" in refused.json()["detail"]) == (422, True)


def test_an_agent_of_an_older_release_sends_no_labels(client):
    message = json.loads(recorded("report.json"))
    del message["jobs"]
    assert client.post("/ingest/v1/report", json=message).is_success
    assert client.get("/api/v1/jobs").json()["items"][0]["labels"] == {}


def a_drill() -> bytes:
    ranks = json.loads(recorded("report.json"))["ranks"]
    return recorded("report.json", ranks=[each | {"job": mark_drill("x")} for each in ranks])


def test_a_drill_is_in_no_list_and_no_metric_unless_asked_for(client, tower):
    client.post("/ingest/v1/report", content=a_drill())
    assert client.get("/api/v1/jobs").json() == {"items": []}
    (job,) = client.get("/api/v1/jobs?drills=true").json()["items"]
    assert job["job"] == "drill:x"
    assert client.get("/api/v1/jobs/drill:x").json()["job"] == "drill:x"
    metrics = client.get("/metrics").text
    assert "drill:x" not in metrics
    assert "\nwatchtower_jobs_hidden 0.0\n" in metrics
    assert describe_state(tower).startswith("0 jobs")


def test_incidents_of_drills_take_no_place_in_the_list(client, store):
    now = Clock().wall()
    for number, job in enumerate(["llama", mark_drill("x"), mark_drill("y")]):
        verdict = Verdict(
            job=job, generation=1, status=Status.ENDED, summary="x", cause=Cause.UNKNOWN
        )
        incident = Incident(
            id=f"i{number}",
            job=job,
            generation=1,
            status=Status.ENDED,
            opened_at=now + number,
            updated_at=now,
            closed_at=now,
            verdict=verdict,
        )
        store.save_incident(incident).result()

    def listed(**query: object) -> list[str]:
        items = client.get("/api/v1/incidents", params=query).json()["items"]
        return [one["job"] for one in items]

    assert listed(limit=1) == ["llama"]
    assert listed(drills="true") == ["drill:y", "drill:x", "llama"]
    assert listed(job="drill:x") == ["drill:x"]


def test_the_name_of_a_drill_is_marked_once_and_bounded():
    assert mark_drill(mark_drill("x")) == "drill:x"
    assert is_drill(mark_drill("x" * MAX_NAME))
    assert len(mark_drill("x" * MAX_NAME)) == MAX_NAME
