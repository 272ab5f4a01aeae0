"""Answers of the API are not sent again while they are unchanged."""

from __future__ import annotations

import pytest

from tests.store.test_incident_filter import naming
from tests.tower.test_api import recorded
from tests.tower.test_incident_lists import save
from watchtower.api.middleware import MAX_COMPARED

ANSWERS = (
    "/api/v1/incidents",
    "/api/v1/incidents/01A",
    "/api/v1/incidents/01A?format=markdown",
    "/api/v1/jobs",
    "/api/v1/jobs/llama/verdict",
    "/api/v1/outages",
    "/api/v1/silences",
)


@pytest.mark.parametrize("path", ANSWERS)
def test_an_unchanged_answer_is_304_without_a_body(client, tower, path):
    save(tower, naming(("a", None), id="01A", closed_at=200.0))
    first = client.get(path)
    tag = first.headers["etag"]
    assert first.headers["cache-control"] == "private, no-cache"
    for sent in (tag, f'"x", W/{tag}', "*"):
        again = client.get(path, headers={"If-None-Match": sent})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert again.headers["x-content-type-options"] == "nosniff"
    for sent in ("", '"x"', "," * (MAX_COMPARED + 1) + tag):
        assert client.get(path, headers={"If-None-Match": sent}).content == first.content


def test_a_changed_answer_has_another_tag(client, tower):
    before = client.get("/api/v1/incidents").headers["etag"]
    save(tower, naming(("a", None), id="01A"))
    answer = client.get("/api/v1/incidents", headers={"If-None-Match": before})
    assert answer.status_code == 200
    client.post("/ingest/v1/report", content=recorded("report.json"))
    tag = client.get("/api/v1/jobs").headers["etag"]
    client.post("/api/v1/silences", json={"job": "llama-70b", "for_s": 60})
    assert client.get("/api/v1/jobs", headers={"If-None-Match": tag}).status_code == 200


def test_errors_and_exports_have_no_tag(client, tower):
    save(tower, naming(("a", None), id="01A"))
    for path in ("/api/v1/incidents/02", "/api/v1/incidents/01A/export", "/healthz"):
        assert "etag" not in client.get(path, headers={"If-None-Match": "*"}).headers
