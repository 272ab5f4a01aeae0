"""A tower without tokens, and requests of web pages in a browser on the same machine."""

import socket

import pytest
from starlette.testclient import TestClient

from tests.tower.test_api import assert_problem, recorded
from watchtower.access.tokens import TokenBook
from watchtower.api.browsers import find_hosts, find_refusal
from watchtower.api.security import AccessRules, Refusals
from watchtower.api.visitors import Visitors
from watchtower.app import make_app
from watchtower.config import load_config
from watchtower.service.settings import ConfigError

PUBLIC_URL = "https://tower.example/watch"
HOSTS = find_hosts("127.0.0.1", PUBLIC_URL, ["Tower-2."])

AGENT = {"host": "127.0.0.1:19660", "content-type": "application/json"}
LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


def refused(method="GET", **headers):
    """Return why a request is refused. Names of headers have underscores here."""
    pairs = {"host": "localhost:19660"} | {k.replace("_", "-"): v for k, v in headers.items()}
    sent = [(name.encode(), value.encode()) for name, value in pairs.items()]
    refusal = find_refusal(method, sent, HOSTS, PUBLIC_URL)
    return refusal and refusal.reason


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST.:19660",
        "127.0.0.1:19660",
        "127.9.9.9",
        "[::1]:19660",
        "10.0.0.7:19660",
        "tower.example",
        "tower-2:80",
        f"{socket.gethostname()}:19660",
    ],
)
def test_a_tower_is_asked_by_its_names_and_addresses(host):
    assert refused(host=host) is None


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:19660", "127.0.0.1.evil.example", "", "[::1", "a@localhost."],
)
def test_a_name_that_is_made_to_point_at_the_tower_is_refused(host):
    assert refused(host=host) == ("wrong_host" if host != "a@localhost." else None)


def test_two_host_headers_are_refused_and_none_is_accepted():
    two = [(b"host", b"localhost"), (b"host", b"localhost")]
    assert find_refusal("GET", two, HOSTS).reason == "wrong_host"
    assert find_refusal("GET", [], HOSTS) is None


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
        {"origin": "https://evil.example"},
        {"origin": "http://localhost:3000"},
        {"origin": "null"},
        {"origin": "nonsense"},
        {"sec-fetch-site": "none", "origin": "https://evil.example"},
    ],
)
def test_a_page_of_another_site_is_refused(method, headers):
    assert refused(method, content_type="application/json", **headers) == "cross_site"


def test_without_a_public_url_no_origin_is_the_tower_s_own():
    for origin in (b"null", b"nonsense", b""):
        sent = [(b"host", b"localhost"), (b"origin", origin)]
        assert find_refusal("GET", sent, HOSTS).reason == "cross_site"


def test_a_link_to_the_tower_can_be_opened_and_changes_nothing():
    assert refused(**LINK) is None
    assert refused("POST", content_type="application/json", **LINK) == "cross_site"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"sec-fetch-site": "same-origin", "origin": "http://localhost:19660"},
        {"sec-fetch-site": "none"},
        {"origin": "https://tower.example"},
    ],
)
def test_agents_commands_and_pages_of_the_tower_may_change_something(headers):
    assert refused("POST", content_type="application/json; charset=utf-8", **headers) is None
    assert refused("DELETE", **headers) is None


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "json"])
def test_a_body_of_a_form_is_refused(kind):
    assert refused("POST", content_type=kind) == "bad_message"
    assert refused("POST") == "bad_message"


def test_without_tokens_a_page_reads_and_changes_nothing(tower):
    refusals = Refusals()
    with TestClient(make_app(tower, AccessRules(refusals=refusals, hosts=HOSTS))) as client:
        body = recorded("report.json")
        assert client.post("/ingest/v1/report", content=body, headers=AGENT).is_success
        known = {"host": "localhost"}
        assert client.get("/api/v1/jobs", headers=known).is_success
        assert_problem(client.get("/api/v1/jobs"), 421, "testserver", "allowed_hosts")
        silences, body = "/api/v1/silences", {"job": "llama-70b", "for_s": 9}
        form = client.post(
            silences,
            content='{"job": "llama-70b", "for_s": 9}',
            headers=known | {"content-type": "text/plain"},
        )
        assert_problem(form, 415, "application/json")
        page = client.post(silences, json=body, headers=known | {"origin": "http://evil"})
        assert_problem(page, 403, "another site")
        assert client.get(silences, headers=known).json() == {"items": []}
        assert client.post(silences, json=body, headers=known).is_success
    assert refusals.counts == {"wrong_host": 1, "bad_message": 1, "cross_site": 1}


def test_with_tokens_any_name_will_do(tower):
    book = TokenBook({}, {"WATCHTOWER_READER_TOKEN": "r" * 20})
    with TestClient(make_app(tower, AccessRules(visitors=Visitors(book), hosts=HOSTS))) as client:
        shown = {"authorization": f"Bearer {'r' * 20}", "origin": "https://grafana.example"}
        assert client.get("/api/v1/jobs", headers=shown).is_success


def test_names_of_the_tower_are_a_setting(tmp_path):
    path = tmp_path / "tower.toml"
    path.write_text('[tower]\nallowed_hosts = ["tower.example"]\n')
    assert load_config(path, {}, {}).allowed_hosts == ("tower.example",)
    for wrong in ('"tower"', '["tower:80"]', "[1]", '[""]'):
        path.write_text(f"[tower]\nallowed_hosts = {wrong}\n")
        with pytest.raises(ConfigError, match=r"`allowed_hosts` is .*list of names without port"):
            load_config(path, {}, {})
