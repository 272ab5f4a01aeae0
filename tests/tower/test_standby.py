"""What a tower on standby answers, and when it ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from tests.waiting import wait_until
from watchtower.access.towers import STANDBY
from watchtower.api.standby import make_standby
from watchtower.store.lease import Lease
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.ownership import Ownership


class Waiting(SqliteStore):
    """A store whose lease another tower has, until a test gives it up."""

    is_free = False

    def claim(self):
        assert self.lease is not None
        self.lease.is_held = self.is_free
        return self._thread.submit(lambda: self.is_free)


@pytest.fixture
def store(tmp_path) -> Iterator[Waiting]:
    store = Waiting(tmp_path / "watchtower.db")
    store.lease = Lease(tower="b", owner="host-a:7:c0ffee", owner_url="http://a:19660")
    yield store
    store.close()


@pytest.fixture
def ended() -> list[str]:
    return []


@pytest.fixture
def client(store, ended) -> Iterator[TestClient]:
    with TestClient(make_standby(Ownership(store), lambda: ended.append("owner"))) as client:
        yield client


def test_it_is_alive_and_not_ready_and_names_the_owner(client):
    assert client.get("/healthz").json() == {"status": "alive"}
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["role"]) == (503, "standby")
    assert answer.json()["detail"] == "on standby: the jobs belong to http://a:19660"


@pytest.mark.parametrize("path", ["/ingest/v1/report", "/ingest/v1/dumps", "/api/v1/silences"])
def test_it_refuses_what_only_the_owner_may_do_and_says_when_to_ask_again(client, path):
    answer = client.post(path, content=b"{}")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["title"] == STANDBY


def test_a_person_gets_a_page_with_a_link_to_the_owner(client):
    answer = client.get("/jobs/<b>", headers={"Accept": "text/html,*/*"})
    assert (answer.status_code, answer.headers["refresh"]) == (503, "2")
    assert 'href="http://a:19660/jobs/&lt;b&gt;"' in answer.text
    assert client.get("/jobs/x").headers["content-type"] == "application/problem+json"


def test_its_metrics_are_its_role(client):
    text = client.get("/metrics").text
    assert 'watchtower_role{role="standby"} 1.0' in text
    assert 'watchtower_role{role="owner"} 0.0' in text


def test_it_ends_when_it_is_the_owner(client, store, ended):
    assert ended == []
    store.is_free = True
    wait_until(lambda: ended == ["owner"], "it is the owner")
