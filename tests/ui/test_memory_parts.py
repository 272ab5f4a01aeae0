"""The parts of the incident page about earlier incidents, and "was this right?"."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from tests.diagnosers import in_thread
from tests.store.test_incident_filter import naming
from tests.ui.browsing import Page
from tests.ui.logins import INCIDENT, OPEN, OWN, form_token_of, log_in, tower_for
from watchtower.api.browsers import find_hosts
from watchtower.app import make_app
from watchtower.policy import Policy
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.tower.tower import Tower

PAGE, API = f"/incidents/{INCIDENT}", f"/api/v1/incidents/{INCIDENT}"
HOSTS = find_hosts("127.0.0.1", "", ["testserver"])
EVIL = "<script>alert(1)</script>"


@pytest.fixture
def client(tmp_path):
    with tower_for(tmp_path, with_tokens=False, hosts=HOSTS) as client:
        yield client


def answer(client, **fields: str):
    fields = {"form_token": form_token_of(client)} | fields
    return client.post(f"{PAGE}/feedback", data=fields, headers=OPEN | OWN)


def shown(client) -> Page:
    return Page(client.get(PAGE, headers=OPEN).text)


def test_a_person_answers_by_a_form_and_the_page_shows_it(client):
    assert "Was this right?" in shown(client).text
    sent = answer(client, right="false", rank="40", cause="network_wait", by=EVIL, note=EVIL)
    assert sent.status_code == 303, sent.text
    given = client.get(API).json()["feedback"]
    assert (given["right"], given["rank"], given["cause"]) == (False, 40, "network_wait")
    page = shown(client)
    assert (
        "answered: no, it was rank 40; the cause: waiting for a service outside the job"
        in page.text
    )
    assert EVIL in page.text
    answer(client, right="true", rank="", cause="", by="bob")
    assert "bob answered: yes" in shown(client).text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "must be one of true, false"),
        ({"right": "yes"}, "must be one of true, false"),
        ({"right": "false", "rank": "-1"}, "must be a whole number"),
        ({"right": "false", "rank": "999999999"}, "allowed is 0 to"),
        ({"right": "false", "cause": "moon"}, "must be one of node_lost"),
        ({"right": "true", "rank": "1"}, "correct a wrong verdict"),
        ({"right": "true", "note": "x" * 2000}, "at most 1024"),
    ],
)
def test_a_wrong_answer_is_explained_on_a_page(client, fields, text):
    sent = answer(client, **fields)
    assert sent.status_code == 422
    assert text in Page(sent.text).text
    assert client.get(API).json()["feedback"] is None


def test_a_form_without_its_token_and_a_reader_change_nothing(client, tmp_path):
    assert answer(client, form_token="x", right="true").status_code == 403
    assert client.get(API).json()["feedback"] is None
    with tower_for(tmp_path / "other") as guarded:
        log_in(guarded, "reader")
        page = shown(guarded)
        assert "No person has answered yet." in page.text
        assert not [each for _, each in page.tags if "feedback" in (each.get("action") or "")]


def test_earlier_incidents_are_shown_with_what_is_the_same(tmp_path):
    store, node = SqliteStore(tmp_path / "watchtower.db"), "<b>gpu</b>"
    for number, ident in enumerate(("01A", "01B", "01Z")):
        one = naming((node, EVIL), id=ident, opened_at=1e9 + number, closed_at=2e9, job=EVIL)
        store.save_incident(one).result(20)
    with TestClient(make_app(Tower(Policy(), store, store.recall(), Clock(), in_thread))) as client:
        page = Page(client.get("/incidents/01Z").text)
        assert f"{node}: 2 earlier incidents in 30 days, 2 at the same line." in page.text
        assert [name for name in page.ids if name.startswith("earlier-01")] == [
            "earlier-01B",
            "earlier-01A",
        ]
        assert "Earlier incidents" not in client.get("/incidents/01A").text
        found = client.get("/incidents/01Z").headers["etag"]
        again = client.get("/incidents/01Z", headers={"If-None-Match": found})
        assert again.status_code == 304
    store.close()
