"""Forms of the incident page without JavaScript, and persons whom a proxy names."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from tests.ui.logins import INCIDENT, OPEN, OWN, form_token_of, log_in, tower_for
from watchtower.access.tokens import Scope
from watchtower.api.browsers import find_hosts
from watchtower.api.visitors import People, TrustedUsers

PAGE = f"/incidents/{INCIDENT}"
API = f"/api/v1/incidents/{INCIDENT}"
HOSTS = find_hosts("127.0.0.1", "", ["testserver"])
FROM_PROXY = ("10.0.0.7", 4711)


@pytest.fixture
def client(tmp_path):
    with tower_for(tmp_path, with_tokens=False, hosts=HOSTS) as client:
        yield client


def send(client: TestClient, name: str, headers=OWN, **fields: str):
    return client.post(f"{PAGE}/{name}", data=fields, headers=OPEN | headers)


def test_an_incident_is_acknowledged_and_silenced_by_forms(client):
    token = form_token_of(client)
    answer = send(client, "ack", form_token=token, by="bob", note="<b>NFS</b>")
    assert (answer.status_code, answer.headers["location"]) == (303, f"../../incidents/{INCIDENT}")
    ack = client.get(API).json()["ack"]
    assert (ack["by"], ack["note"]) == ("bob", "<b>NFS</b>")
    assert send(client, "silence", form_token=token, for_s="7200", by="bob").status_code == 303
    silence = client.get(API).json()["silence"]
    assert (silence["job"], silence["by"]) == ("llama", "bob")
    page = client.get(PAGE, headers=OPEN).text
    assert "Acknowledged by bob" in page
    assert "Silenced until" in page


def test_an_open_page_shows_at_once_what_the_api_has_changed(client):
    feedback = {"right": False, "rank": 0, "cause": "network_wait", "by": "ann"}
    for address, sent, text in (
        (f"{API}/ack", {"by": "bob"}, "Acknowledged by bob"),
        ("/api/v1/silences", {"job": "llama", "for_s": 7200}, "Silenced until"),
        (f"{API}/feedback", feedback, "ann answered"),
    ):
        before = client.get(PAGE, headers=OPEN)
        known = OPEN | {"If-None-Match": before.headers["etag"]}
        assert text not in before.text
        assert client.get(PAGE, headers=known).status_code == 304
        assert client.post(address, json=sent, headers=OPEN).status_code == 200
        assert text in client.get(PAGE, headers=known).text


def test_an_incident_is_found_by_the_beginning_of_its_id(client):
    token = form_token_of(client)
    answer = client.post("/incidents/01kapy/ack", data={"form_token": token}, headers=OWN)
    assert answer.headers["location"] == f"../../incidents/{INCIDENT}"


@pytest.mark.parametrize(
    ("headers", "has_token"),
    [
        (OWN, False),
        ({}, True),
        (OWN | {"Sec-Fetch-Site": "cross-site"}, True),
        (OWN | {"Sec-Fetch-Site": "none"}, True),
        ({"Origin": "http://evil.example"}, True),
        ({"Origin": "null"}, True),
    ],
)
def test_a_form_of_another_site_changes_nothing(client, headers, has_token):
    token = form_token_of(client) if has_token else "x"
    answer = client.post(f"{PAGE}/ack", data={"form_token": token}, headers=headers)
    assert answer.status_code == 403
    assert client.get(API).json()["ack"] is None


def test_a_form_by_a_wrong_name_of_the_tower_is_refused(client):
    token = form_token_of(client)
    wrong = {"Host": "evil.example", "Origin": "http://evil.example"}
    assert send(client, "ack", wrong, form_token=token).status_code == 421


@pytest.mark.parametrize(
    ("name", "fields", "status", "text"),
    [
        ("ack", {"note": "x" * 2000}, 422, "at most 1024"),
        ("ack", {"by": "x" * 2000}, 422, "at most 256"),
        ("ack", {"by": " \t\u2003"}, 422, "your name has only spaces: write it"),
        ("ack", {"by": ""}, 422, "your name is missing: write it"),
        ("silence", {"for_s": "7200", "by": " "}, 422, "your name has only spaces"),
        ("feedback", {"right": "true", "by": " "}, 422, "your name has only spaces"),
        ("silence", {"for_s": "1e9"}, 422, "whole number of seconds"),
        ("silence", {"for_s": ""}, 422, "whole number of seconds"),
        ("silence", {"for_s": "0"}, 422, "allowed is 1 to"),
        ("silence", {"for_s": "999999999"}, 422, "allowed is 1 to"),
        ("ack", {"note": "x" * 20_000}, 413, "larger than"),
    ],
)
def test_what_a_form_must_not_contain_is_explained_on_a_page(client, name, fields, status, text):
    answer = send(client, name, form_token=form_token_of(client), **fields)
    assert answer.status_code == status
    assert text in answer.text
    assert answer.headers["content-type"].startswith("text/html")
    found = client.get(API).json()
    assert (found["ack"], found["silence"], found["feedback"]) == (None, None, None)


def test_an_optional_name_may_be_left_empty(client):
    fields = {"form_token": form_token_of(client), "for_s": "7200", "by": ""}
    assert send(client, "silence", **fields).status_code == 303
    assert client.get(API).json()["silence"]["by"] == ""


def test_an_unknown_incident_is_not_acknowledged(client):
    fields = {"form_token": form_token_of(client)}
    answer = client.post("/incidents/02/ack", data=fields, headers=OWN)
    assert answer.status_code == 404


def test_a_form_is_not_json(client):
    answer = client.post(f"{PAGE}/ack", json={"by": "bob"}, headers=OWN)
    assert answer.status_code == 415


def test_after_the_session_has_ended_a_form_leads_to_the_login(tmp_path):
    with tower_for(tmp_path) as client:
        log_in(client)
        token = form_token_of(client)
        client.cookies.clear()
        answer = send(client, "ack", form_token=token)
        assert (answer.status_code, answer.headers["location"]) == (303, "../../login")


# ---- Persons whom a proxy names ----


def named(name: str) -> dict[str, str]:
    return OWN | OPEN | {"X-Forwarded-User": name, "Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def proxied(tmp_path):
    """Return a function that starts a tower behind a proxy at 10.0.0.7."""

    def start(scope: Scope = Scope.OPERATOR, **more):
        trusted = TrustedUsers("X-Forwarded-User", ["10.0.0.7", "10.1.0.0/16"], scope)
        return tower_for(tmp_path, people=People(trusted=trusted), **more)

    return start


def come_from(client: TestClient, address: str) -> None:
    client._transport.client = (address, 4711)


@pytest.mark.parametrize("address", ["10.0.0.7", "10.1.2.3", "::ffff:10.0.0.7"])
def test_a_person_whom_the_proxy_names_acts_under_this_name(proxied, address):
    with proxied() as client:
        come_from(client, address)
        page = client.get(PAGE, headers=named("alice")).text
        assert "alice" in page
        assert "Log out" not in page
        token = page.partition('name="form_token" value="')[2].partition('"')[0]
        fields = {"form_token": token, "by": "bob"}
        answer = client.post(f"{PAGE}/ack", data=fields, headers=named("alice"))
        assert answer.status_code == 303
        assert client.get(API, headers=named("alice")).json()["ack"]["by"] == "alice"
        # The form token is of one person.
        silence = {"form_token": token, "for_s": "60"}
        answer = client.post(f"{PAGE}/silence", data=silence, headers=named("eve"))
        assert answer.status_code == 403


@pytest.mark.parametrize("address", ["10.0.0.8", "127.0.0.1", "testclient", "::1"])
def test_from_another_address_the_name_does_not_count(proxied, address):
    with proxied() as client:
        come_from(client, address)
        assert client.get(API, headers=named("alice")).status_code == 401
        assert client.get(PAGE, headers=named("alice")).headers["location"].startswith("../login")


def test_two_names_or_an_empty_one_count_as_none(proxied):
    with proxied() as client:
        come_from(client, "10.0.0.7")
        two = [("X-Forwarded-User", "alice"), ("X-Forwarded-User", "bob")]
        assert client.get(API, headers=two).status_code == 401
        assert client.get(API, headers={"X-Forwarded-User": "  "}).status_code == 401


def test_a_proxy_s_person_may_be_a_reader(proxied):
    with proxied(Scope.READER) as client:
        come_from(client, "10.0.0.7")
        assert client.get(API, headers=named("alice")).status_code == 200
        assert client.post(f"{PAGE}/ack", data={}, headers=named("alice")).status_code == 403


def test_a_page_of_another_site_cannot_use_the_proxy_s_login(proxied):
    with proxied() as client:
        come_from(client, "10.0.0.7")
        token = form_token_of_person(client, "alice")
        cross = named("alice") | {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
        assert client.get(API, headers=cross).status_code == 403
        headers = named("alice") | {"Origin": "http://evil.example", "X-Form-Token": token}
        assert client.post(f"{API}/ack", json={}, headers=headers).status_code == 403
        without = named("alice")
        assert client.post(f"{API}/ack", json={}, headers=without).status_code == 403
        assert client.post(
            f"{API}/ack", json={}, headers=without | {"X-Form-Token": token}
        ).is_success


def test_a_reader_of_the_proxy_changes_nothing_on_a_tower_without_tokens(proxied):
    with proxied(Scope.READER, with_tokens=False, hosts=HOSTS) as client:
        come_from(client, "10.0.0.7")
        assert client.get(API, headers=named("alice")).status_code == 200
        headers = named("alice") | {"X-Form-Token": form_token_of_person(client, "alice")}
        assert client.post(f"{API}/ack", json={}, headers=headers).status_code == 403


def test_a_name_with_markup_stays_text(proxied):
    with proxied() as client:
        come_from(client, "10.0.0.7")
        page = client.get("/", headers=named("<script>alert(1)</script>")).text
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert(1)" in page


def form_token_of_person(client: TestClient, name: str) -> str:
    page = client.get(PAGE, headers=named(name)).text
    return page.partition('name="form_token" value="')[2].partition('"')[0]
