""" "Was this right?": answers about verdicts, and what they show together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.diagnosers import in_thread
from tests.store.test_incident_filter import naming
from tests.tower.test_api import assert_problem
from tests.tower.test_incident_lists import save
from watchtower.commands.texts import NONE_YET, write_calibration
from watchtower.incidents.incident import Incident, JobFacts
from watchtower.policy import Policy
from watchtower.store.retention import DAY_S, Retention
from watchtower.store.sqlite import SqliteStore
from watchtower.tower import acts
from watchtower.tower.clock import Clock
from watchtower.tower.tower import Tower
from watchtower.wire.verdict import Cause

PATH = "/api/v1/incidents/01A/feedback"


def judged(ident: str, cause: Cause, confidence: float, **changes: object) -> Incident:
    incident = naming(("gpu-1", None), id=ident, cause=cause, closed_at=200.0, **changes)
    return replace(incident, verdict=replace(incident.verdict, confidence=confidence))


@pytest.fixture
def incident(tower) -> Incident:
    incident = judged("01A", Cause.GPU_FAULT, 0.85, facts=JobFacts(ranks=64))
    save(tower, incident)
    return incident


def test_an_answer_is_shown_with_its_incident_and_the_newest_counts(client, incident):
    wrong = {"right": False, "rank": 40, "cause": "network_wait", "by": "bob ", "note": "a cable"}
    answer = client.post(PATH, json=wrong)
    assert answer.status_code == 200, answer.text
    shown = client.get("/api/v1/incidents/01A").json()["feedback"]
    assert shown == answer.json()
    assert shown | wrong == shown | {"by": "bob "}
    assert (shown["by"], shown["verdict_cause"], shown["confidence"]) == ("bob", "gpu_fault", 0.85)
    client.post(PATH, json={"right": True})
    shown = client.get("/api/v1/incidents/01A").json()["feedback"]
    assert (shown["right"], shown["rank"], shown["cause"], shown["note"]) == (True, None, None, "")
    counts = client.get("/api/v1/calibration").json()
    assert (counts["right_count"], counts["wrong_count"]) == (1, 0)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({}, "`right` is missing"),
        ({"right": "yes"}, "`right` must be true or false"),
        ({"right": False, "rank": -1}, "`rank` must be 0 or more"),
        ({"right": False, "rank": 1.5}, "`rank` must be a whole number"),
        ({"right": False, "cause": "moon"}, "`cause` must be"),
        ({"right": True, "rank": 3}, "only if `right` is false"),
        ({"right": False, "rank": 64}, "`rank` is 64, but the job has ranks 0 to 63"),
        ({"right": False, "rank": 0, "cause": "unknown"}, "the verdict names rank 0 and unknown"),
        ({"right": True, "note": "x" * 1025}, "`note` must have at most 1024"),
        ({"right": True, "by": "x" * 257}, "`by` must have at most 256"),
        ({"right": True, "by": ""}, "`by` must not be empty"),
        ({"right": True, "by": " \t"}, "`by` must not be empty"),
    ],
)
def test_an_invalid_answer_is_refused(client, incident, body, text):
    assert_problem(client.post(PATH, json=body), 422, text)
    assert client.get("/api/v1/incidents/01A").json()["feedback"] is None


def test_an_answer_about_no_incident_is_refused(client):
    assert_problem(client.post(PATH, json={"right": True}), 404, "there is no incident '01A'")


def test_an_answer_survives_a_restart_is_exported_and_goes_with_its_incident(
    client, tower, incident, tmp_path
):
    client.post(PATH, json={"right": False, "note": "<b>"})
    bundle = client.get("/api/v1/incidents/01A/export").json()
    assert bundle["feedback"]["note"] == "<b>"
    path = tower.store_writer.store._path
    tower.store_writer.store.close()
    store = SqliteStore(path, Retention(incident_days=1))
    again = Tower(Policy(), store, store.recall(), Clock(), in_thread)
    assert again.feedback.find("01A") == tower.feedback.find("01A")
    store.prune(100 * DAY_S).result(20)
    assert store.recall().feedback == ()
    store.close()


def test_answers_are_counted_by_confidence_and_cause_but_not_those_of_drills(client, tower):
    cases = [
        ("01A", Cause.GPU_FAULT, 0.95, True, {}),
        ("01B", Cause.GPU_FAULT, 0.9, False, {}),
        ("01C", Cause.UNKNOWN, 0.3, False, {}),
        ("01D", Cause.GPU_FAULT, 0.95, False, {"job": "drill:a"}),
    ]
    for ident, cause, confidence, right, changes in cases:
        save(tower, judged(ident, cause, confidence, **changes))
        client.post(f"/api/v1/incidents/{ident}/feedback", json={"right": right})
    found = client.get("/api/v1/calibration").json()
    assert (found["right_count"], found["wrong_count"]) == (1, 2)
    assert [(band["right_count"], band["wrong_count"]) for band in found["items"]] == [
        (0, 1), (0, 0), (0, 0), (0, 0), (0, 0), (1, 1),
    ]  # fmt: skip
    assert [one["cause"] for one in found["causes"]] == ["gpu_fault", "unknown"]
    page = client.get("/metrics").text
    assert 'watchtower_verdict_feedback{cause="gpu_fault",right="true"} 1.0' in page
    assert 'watchtower_verdict_feedback{cause="unknown",right="false"} 1.0' in page
    text = write_calibration(found)
    assert "1 of 3 verdicts were right" in text
    assert "90%-100%    1      1      92%   50%" in text
    assert write_calibration(found | {"right_count": 0, "wrong_count": 0}) == NONE_YET


def test_the_number_of_answers_in_memory_is_bounded(client, tower, monkeypatch):
    monkeypatch.setattr(acts, "MAX_ANSWERS", 2)
    for ident in ("01A", "01B", "01C"):
        save(tower, judged(ident, Cause.GPU_FAULT, 0.9))
        client.post(f"/api/v1/incidents/{ident}/feedback", json={"right": True})
    assert tower.feedback.find("01A") is None
    assert tower.feedback.find("01C") is not None
