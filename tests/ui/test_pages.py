"""Pages as a browser gets them, from a tower in process."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from tests.diagnosers import InThread
from tests.tower.test_api import recorded
from watchtower.app import make_app
from watchtower.core.policy import Policy
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.tower.tower import Tower


@pytest.fixture
def client(tmp_path):
    store = SqliteStore(tmp_path / "watchtower.db")
    with TestClient(make_app(Tower(Policy(), store, store.recall(), Clock(), InThread))) as client:
        yield client
    store.close()


def test_the_fleet_lists_the_jobs(client):
    assert "No job is reported" in client.get("/").text
    client.post("/ingest/v1/report", content=recorded("report.json"))


def test_an_unknown_incident_is_a_page_with_a_sentence(client):
    answer = client.get("/incidents/01KAPY3V7QH8M2T4W6Z9B1C5D7")
    assert answer.status_code == 404
    assert "there is no incident" in answer.text
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")


def test_a_page_is_sent_again_only_if_it_changed(client):
    first = client.get("/")
    again = client.get("/", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_static_files_are_served_with_their_version(client):
    style = client.get("/").text.partition('<link rel="stylesheet" href="./')[2].partition('"')[0]
    answer = client.get(f"/{style}")
    assert answer.headers["content-type"].startswith("text/css")
    assert "immutable" in answer.headers["cache-control"]
    assert client.get("/static/nothing.css").status_code == 404
    assert client.get("/static/..%2fpages.py").status_code == 404
