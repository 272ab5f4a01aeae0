"""The page with the list of incidents, by its address."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from tests.diagnosers import in_thread
from tests.store.test_incident_filter import naming
from tests.ui.browsing import Page
from watchtower.app import make_app
from watchtower.policy import Policy
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.tower.tower import Tower
from watchtower.ui import routes
from watchtower.wire.verdict import Cause, Status

EVIL = '"><script>%_'


@pytest.fixture
def client(tmp_path, monkeypatch):
    monkeypatch.setattr(routes, "LISTED", 2)
    store = SqliteStore(tmp_path / "watchtower.db")
    over = {"status": Status.RECOVERED, "closed_at": 2e9}
    for number in range(4):
        one = naming(("a", None), id=f"01{number}", opened_at=1e9 + number, **over)
        store.save_incident(one).result(20)
    hung = naming((EVIL, None), id="02A", opened_at=1.1e9, cause=Cause.GPU_FAULT)
    store.save_incident(hung).result(20)
    with TestClient(make_app(Tower(Policy(), store, store.recall(), Clock(), in_thread))) as client:
        yield client
    store.close()


def shown(client, address: str) -> tuple[list[str], Page]:
    page = Page(client.get(address).text)
    return [name[9:] for name in page.ids if name.startswith("incident-")], page


def test_incidents_are_chosen_by_the_address_and_older_ones_follow(client):
    seen, address = [], "/incidents?node=a&status="
    while address:
        found, page = shown(client, address)
        seen.append(found)
        older = [each for each in page.addresses if "cursor=" in each]
        address = older[0].removeprefix(".") if older else ""
    assert seen == [["013", "012"], ["011", "010"]]


def test_a_name_of_markup_is_chosen_and_stays_text(client):
    answer = client.get("/incidents", params={"node": EVIL, "cause": "gpu_fault"})
    assert "<script>" not in answer.text
    found = [name for name in Page(answer.text).ids if name.startswith("incident-")]
    assert found == ["incident-02A"]
    assert "There is no such incident." in client.get("/incidents?node=%25").text


def test_a_wrong_address_is_explained_on_a_page(client):
    for query, text in (("status=x", "must be"), ("cursor=x", "is not valid"), ("since=1", "time")):
        answer = client.get(f"/incidents?{query}")
        assert answer.status_code == 422, query
        assert answer.headers["content-type"].startswith("text/html")
        assert text in Page(answer.text).text


def test_pages_of_two_addresses_are_kept_apart(client):
    one, other = client.get("/incidents?status=hung"), client.get("/incidents?status=recovered")
    assert one.headers["etag"] != other.headers["etag"]
    again = client.get("/incidents?status=hung", headers={"If-None-Match": one.headers["etag"]})
    assert again.status_code == 304
