"""Incidents found by the beginning of their id, lists of agents, titles of problem documents."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from tests.diagnosers import in_thread
from tests.tower.test_api import assert_problem
from watchtower.access.tokens import Scope, TokenBook
from watchtower.api.problems import problem
from watchtower.api.security import AccessRules
from watchtower.api.visitors import Visitors
from watchtower.app import make_app
from watchtower.incidents.incident import Incident
from watchtower.policy import Policy
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.tower.stored_incidents import MAX_CANDIDATES, AmbiguousIdError, find_incident_id
from watchtower.tower.tower import Tower
from watchtower.wire.verdict import Cause, Status, Verdict

FIRST, SECOND = "01KAPY3V7QH8M2T4W6Z9B1C5D7", "01KAPY4AAAH8M2T4W6Z9B1C5D7"


@pytest.fixture
def store(tmp_path) -> Iterator[SqliteStore]:
    store, now = SqliteStore(tmp_path / "watchtower.db"), Clock().wall()
    for number, ident in enumerate((FIRST, SECOND)):
        verdict = Verdict(
            job="llama",
            generation=1,
            status=Status.HUNG,
            summary="x",
            incident=ident,
            cause=Cause.UNKNOWN,
        )
        store.save_incident(
            Incident(
                id=ident,
                job="llama",
                generation=1,
                status=Status.ENDED,
                opened_at=now - number,
                updated_at=now,
                closed_at=now,
                verdict=verdict,
            )
        ).result()
    yield store
    store.close()


@pytest.fixture
def tower(store) -> Tower:
    return Tower(Policy(), store, store.recall(), Clock(), in_thread)


@pytest.mark.parametrize("text", [FIRST, FIRST[:7], FIRST[:7].lower(), FIRST.lower()])
def test_an_incident_is_found_by_a_unique_beginning_of_its_id(client, text):
    path = f"/api/v1/incidents/{text}"
    assert client.get(path).json()["id"] == FIRST
    assert client.get(path, params={"format": "text"}).text.startswith("llama: ")
    assert client.get(f"{path}/export").json()["id"] == FIRST
    assert client.post(f"{path}/ack", json={"by": "bob"}).json()["by"] == "bob"


def test_an_ambiguous_beginning_lists_the_candidates(client):
    answer = client.get("/api/v1/incidents/01k")
    assert_problem(answer, 409, "several incidents begin with '01k'", f"{FIRST} (job llama)")
    assert answer.json()["title"] == "Ambiguous id"
    assert answer.json()["candidates"] == [FIRST, SECOND]
    assert client.post("/api/v1/incidents/01K/ack", json={}).status_code == 409


@pytest.mark.parametrize("text", ["02", FIRST + "0", "%", "_", "é", FIRST[1:5]])
def test_a_text_that_is_not_the_beginning_of_an_id_is_not_found(client, text):
    assert_problem(client.get(f"/api/v1/incidents/{text}"), 404, "there is no incident")


def test_many_candidates_are_not_all_listed():
    found = [(f"{number:026}", "job") for number in range(MAX_CANDIDATES + 1)]
    error = AmbiguousIdError("0", found)
    assert len(error.candidates) == MAX_CANDIDATES
    assert str(error).endswith("and more")


def test_an_empty_id_matches_no_incident(tower):
    assert asyncio.run(find_incident_id(tower, "")) is None


def test_every_problem_has_the_title_of_what_happened(tower):
    without_tokens = TestClient(make_app(tower, AccessRules(hosts=frozenset({"tower"}))))
    cross = {"Host": "tower", "Sec-Fetch-Site": "cross-site"}
    refused = without_tokens.get("/api/v1/jobs", headers=cross)
    assert (refused.status_code, refused.json()["title"]) == (403, "Forbidden")
    refused = without_tokens.get("/api/v1/jobs", headers={"Host": "evil.example"})
    assert (refused.status_code, refused.json()["title"]) == (421, "Unknown name of the tower")
    book = TokenBook({}, {"WATCHTOWER_AGENT_TOKEN": "a" * 32})
    assert book.scopes == {Scope.AGENT}
    with_tokens = TestClient(make_app(tower, AccessRules(visitors=Visitors(book))))
    refused = with_tokens.get("/api/v1/jobs", headers={"Authorization": f"Bearer {'a' * 32}"})
    assert refused.json()["title"] == "Not allowed with this token"
    assert problem(418, "x").body.count(b"Teapot") == 1
