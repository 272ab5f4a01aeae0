"""Pages as a browser gets them, from a tower in process."""

from __future__ import annotations

from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from tests.diagnosers import in_thread
from tests.tower.test_api import recorded
from tests.ui.browsing import Page
from tests.ui.test_parts_of_pages import HEALTH, a_job_overview, render
from watchtower.access.tokens import Scope, TokenBook
from watchtower.api.security import AccessRules
from watchtower.api.visitors import Visitors
from watchtower.app import make_app
from watchtower.policy import Policy
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.tower.tower import Tower
from watchtower.ui.job_page import show_job
from watchtower.ui.lists import show_fleet
from watchtower.ui.pages import HEADERS
from watchtower.views.node import UnwatchedList, UnwatchedView

UNKNOWN = "01KAPY3V7QH8M2T4W6Z9B1C5D7"
PATHS = ("/", "/nodes", "/incidents", f"/incidents/{UNKNOWN}", "/jobs/unknown")


@pytest.fixture
def tower(tmp_path):
    store = SqliteStore(tmp_path / "watchtower.db")
    yield Tower(Policy(), store, store.recall(), Clock(), in_thread)
    store.close()


@pytest.fixture
def client(tower):
    with TestClient(make_app(tower)) as client:
        yield client


def test_an_empty_tower_has_pages(client):
    assert "No job is reported" in client.get("/").text
    assert "No agent has reported" in client.get("/nodes").text
    assert "There is no incident" in client.get("/incidents").text


@pytest.mark.parametrize("path", PATHS)
def test_every_page_has_a_strict_policy(client, path):
    headers = client.get(path).headers
    for name, value in HEADERS.items():
        assert headers[name] == value
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", PATHS[3:])
def test_what_is_not_known_is_a_page_with_a_sentence(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert "there is no" in Page(answer.text).text


def test_a_page_is_sent_again_only_if_it_changed(client):
    first = client.get("/")
    again = client.get("/", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert client.head("/").headers["etag"] == first.headers["etag"]


def test_an_open_page_is_answered_without_the_framework(tower):
    app = make_app(tower)
    asked: list[str] = []
    framework = app._framework

    async def counting(scope, receive, send):
        asked.append(scope.get("path", ""))
        await framework(scope, receive, send)

    app._framework = counting
    with TestClient(app) as client:
        path = "/jobs/a%2Fb"  # its route has another path
        tags = {"If-None-Match": client.get("/").headers["etag"]}
        assert client.get("/", headers=tags).status_code == 304
        assert client.get("/?x", headers=tags).status_code == 304, "another address"
        assert client.get(path, headers=tags).status_code == 404
        assert asked.count("/") == 2
        other = client.get("/", headers={"If-None-Match": '"old"'})
        assert other.status_code == 200
        assert other.headers["x-content-type-options"] == "nosniff"


def test_an_answer_without_the_framework_needs_the_same_rights(tower):
    token = "a" * 43
    book = TokenBook({}, {"WATCHTOWER_READER_TOKEN": token})
    with TestClient(make_app(tower, AccessRules(visitors=Visitors(book)))) as client:
        known = {"Authorization": f"Bearer {token}"}
        tags = {"If-None-Match": client.get("/", headers=known).headers["etag"]}
        assert client.get("/", headers=tags | known).status_code == 304
        assert client.get("/", headers=tags).status_code == 401
        wrong = {"Authorization": f"Bearer {'b' * 43}"}
        assert client.get("/", headers=tags | wrong).status_code == 401


def test_static_files_need_no_token_and_are_kept_by_browsers(tower):
    book = TokenBook({}, {"WATCHTOWER_READER_TOKEN": "a" * 43})
    assert Scope.READER in book.scopes
    with TestClient(make_app(tower, AccessRules(visitors=Visitors(book)))) as client:
        assert client.get("/").status_code == 401
        page = client.get("/", headers={"Authorization": f"Bearer {'a' * 43}"}).text
        links = [each for each in Page(page).addresses if "static/" in each]
        assert len(links) == 5
        for link in links:
            answer = client.get(link.removeprefix("."))
            assert answer.status_code == 200
            assert "immutable" in answer.headers["cache-control"]
            assert "immutable" not in client.get(link.removeprefix(".") + "0").headers.values()


def test_a_static_file_is_one_of_a_few(client):
    assert client.get("/static/nothing.css").status_code == 404
    assert client.get("/static/..%2fpages.py").status_code == 404
    assert client.get("/static/%2e%2e/pages.py").status_code == 404


def test_links_of_a_page_are_relative_to_its_own_depth(client):
    client.post("/ingest/v1/report", content=recorded("report.json"))
    for path, root in (("/", "./"), ("/nodes", "./"), ("/jobs/llama-70b", "../")):
        page = Page(client.get(path).text)
        assert f"{root}incidents" in page.addresses


def test_the_page_of_a_job_is_found_with_any_name(client):
    client.post("/ingest/v1/report", content=recorded("report.json"))
    links = [each for each in Page(client.get("/").text).addresses if "jobs/" in each]
    assert links == ["./jobs/llama-70b"]
    assert "llama-70b" in client.get("/jobs/llama-70b").text
    assert client.get("/jobs/a%2Fb").status_code == 404
    assert Page(client.get("/jobs/a/b").text).addresses[0].startswith("../../")


@pytest.mark.parametrize(
    ("agents", "silent", "text", "state"),
    [
        (0, 0, "No agent reports. The README shows", "Agents 0 report"),
        (1, 0, "1 agent reports, and it has found no rank. The README", "Agents 1 reports"),
        (3, 1, "2 agents report, and they have found no rank. The", "Agents 2 report, 1 is silent"),
    ],
)
def test_a_fleet_without_jobs_describes_its_agents(agents, silent, text, state):
    health = replace(HEALTH, agents=agents, agents_silent=silent)
    page = Page(render("fleet.html", page=show_fleet([], [], health))).text
    words = " ".join(page.split())
    assert text in words
    assert state in words.replace(" ,", ",")


def test_pages_list_what_is_not_watched():
    one = UnwatchedView(
        node="gpu-1",
        job="llama",
        owner="uid:1",
        reason="second_claim",
        count=8,
        pids=[4, 5],
        text="8 processes are not watched: <they> claim ranks of job llama.",
    )
    unwatched = UnwatchedList(items=[one] * 10, rank_count=80)
    health = replace(HEALTH, unwatched=unwatched)
    for html in (
        render("job.html", page=show_job(a_job_overview(unwatched=unwatched), []), parts=[]),
        render("fleet.html", page=show_fleet([], [], health)),
    ):
        text = " ".join(Page(html).text.split())
        assert "Not watched: 80 processes" in text
        assert "gpu-1: 8 processes are not watched: <they> claim" in text
        assert "pid 4, 5" in text
        assert "2 more" in text
        assert "<they>" not in html
    assert "Not watched" not in render("fleet.html", page=show_fleet([], [], HEALTH))


def test_advisories_are_on_the_pages_of_fleet_nodes_and_job(client):
    observed = {"source": "shared_memory", "subject": "node", "name": "shm_full", "age_s": 2.0}
    observed["text"] = "/dev/shm is 97 % full: <b>evil</b>"
    body = recorded("report.json", observations=[observed])
    assert client.post("/ingest/v1/report", content=body).is_success
    for path in ("/", "/nodes", "/jobs/llama-70b"):
        text = client.get(path).text
        page = Page(text).text
        assert "/dev/shm is 97 % full" in page, path
        assert "ls -l /dev/shm" in page
        assert "<b>evil" not in text
