"""Login and logout, in process: who gets in, what the cookie allows, where a login leads."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.tower.test_api import assert_problem
from tests.ui.logins import (
    INCIDENT,
    LINK,
    OPEN,
    ORIGIN,
    OWN,
    TOKENS,
    form_token_of,
    log_in,
    tower_for,
)
from watchtower.access.sessions import make_key
from watchtower.api.browsers import MAX_NEXT, check_next
from watchtower.api.visitors import COOKIE, SECURE_COOKIE, People
from watchtower.ui.login import LOGIN_BURST

PAGE = f"/incidents/{INCIDENT}"
ACK = f"/api/v1/incidents/{INCIDENT}/ack"


@pytest.fixture
def client(tmp_path):
    with tower_for(tmp_path) as client:
        yield client


def refused(client, reason: str) -> float:
    shown = {"Authorization": f"Bearer {TOKENS['reader']}"}
    page = client.get("/metrics", headers=shown).text
    return float(re.search(rf'refused_requests_total{{reason="{reason}"}} (\S+)', page)[1])


def test_a_page_without_a_session_leads_to_the_login_and_back(client):
    answer = client.get(f"{PAGE}?tab=stacks", headers=OPEN)
    assert answer.status_code == 303
    assert answer.headers["location"] == f"../login?next=/incidents/{INCIDENT}%3Ftab%3Dstacks"
    form = client.get(answer.headers["location"][2:], headers=OPEN)
    assert form.status_code == 200
    assert form.headers["cache-control"] == "no-store"
    (back,) = re.findall(r'name="next" value="([^"]+)"', form.text)
    answer = log_in(client, "reader", next=back)
    assert (answer.status_code, answer.headers["location"]) == (303, f".{PAGE}?tab=stacks")
    assert client.get(PAGE, headers=OPEN).status_code == 200


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/api/v1/jobs", OPEN),
        (PAGE, {"Accept": "*/*"}),
        (PAGE, OPEN | {"Sec-Fetch-Mode": "cors"}),
        ("/metrics", {"Accept": "text/plain"}),
    ],
)
def test_programs_and_scripts_get_a_problem_instead_of_a_login(client, path, headers):
    assert_problem(client.get(path, headers=headers), 401, "needs a token")


def test_the_cookie_is_strict_and_contains_no_token(client):
    cookie = log_in(client).headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert attributes == {"httponly", "max-age=86400", "path=/", "samesite=strict"}
    assert TOKENS["operator"] not in cookie


def test_over_tls_the_cookie_is_for_this_host_alone(tmp_path):
    with tower_for(tmp_path, people=People(is_secure=True)) as client:
        client.base_url = "https://testserver"
        origin = OWN | {"Origin": "https://testserver"}
        answer = client.post("/login", data={"token": TOKENS["reader"]}, headers=origin)
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"{SECURE_COOKIE}=")
        assert "; Path=/;" in cookie
        assert "Secure" in cookie
        assert "domain" not in cookie.lower()
        assert client.get("/", headers=OPEN).status_code == 200
        value = cookie.partition("=")[2].partition(";")[0]
        client.cookies.clear()
        plain = {"Cookie": f"{COOKIE}={value}"}
        assert client.get("/api/v1/jobs", headers=plain).status_code == 401


def test_a_login_that_the_browser_would_drop_is_explained(tmp_path):
    with tower_for(tmp_path, people=People(is_secure=True)) as client:
        answer = log_in(client)
        assert answer.status_code == 403
        assert "Open this page with https://" in answer.text
        assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    ("token", "reason", "text"),
    [
        ("", "unknown_token", "does not know this token"),
        ("a-token-that-nobody-was-given", "unknown_token", "does not know this token"),
        (TOKENS["agent"], "wrong_scope", "This token is for agents"),
        ("é" * 100, "unknown_token", "does not know this token"),
    ],
)
def test_a_wrong_token_is_refused_and_counted(client, token, reason, text):
    before = refused(client, reason)
    answer = client.post("/login", data={"token": token, "next": PAGE}, headers=OWN)
    assert answer.status_code == 403
    assert text in answer.text
    assert f'value="{PAGE}"' in answer.text
    assert not token or token not in answer.text
    assert "set-cookie" not in answer.headers
    assert refused(client, reason) == before + 1


def test_failed_logins_of_an_address_are_limited(client):
    for _ in range(LOGIN_BURST):
        assert client.post("/login", data={"token": "x"}, headers=OWN).status_code == 403
    answer = log_in(client)
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) > 0
    assert refused(client, "too_many_logins") == 1


def test_logins_that_succeed_are_not_limited(client):
    for _ in range(2 * LOGIN_BURST):
        assert log_in(client).status_code == 303


@pytest.mark.parametrize(
    "headers",
    [
        {},
        OWN | {"Sec-Fetch-Site": "cross-site"},
        OWN | {"Sec-Fetch-Site": "same-site"},
        OWN | {"Sec-Fetch-Site": "none"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ORIGIN, "Sec-Fetch-Site": "cross-site"},
    ],
)
def test_a_page_of_another_site_logs_nobody_in(client, headers):
    answer = client.post("/login", data={"token": TOKENS["reader"]}, headers=headers)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers
    assert refused(client, "cross_site") == 1


def test_a_login_is_a_small_form(client):
    answer = client.post("/login", data={"token": "x" * 20_000}, headers=OWN)
    assert answer.status_code == 413
    assert client.post("/login", json={"token": "x"}, headers=OWN).status_code == 415
    many = {f"field{number}": "x" for number in range(100)}
    assert client.post("/login", data=many, headers=OWN).status_code == 400
    assert refused(client, "bad_message") == 3


@pytest.mark.parametrize(
    "text",
    [
        "//evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "https://evil.example",
        "evil.example",
        "/%2Fevil.example",
        "/%2f%2fevil.example",
        "/%5Cevil.example",
        "/\tevil",
        "/a b",
        "/é",
        "/jobs/x\r\nSet-Cookie: a=b",
        "javascript:alert(1)",
        "/login",
        "/login?next=/login",
        "/logout",
        "/api/v1/jobs",
        "/" + "x" * MAX_NEXT,
        "",
    ],
)
def test_a_login_leads_to_no_other_address(text):
    assert check_next(text) == "/"


def test_a_login_leads_back_to_any_page(client):
    for text in ("/", PAGE, "/jobs/a%2Fb?x=//y", "/javascript:alert(1)", "/nodes#x"):
        assert check_next(text) == text
        assert log_in(client, "reader", next=text).headers["location"] == f".{text}"
    for text in ("//evil.example", "https://evil.example", "/%2Fevil.example"):
        assert log_in(client, "reader", next=text).headers["location"] == "./"


def test_a_link_from_another_site_finds_the_session(client):
    # A strict cookie is not sent with a link, so the tower sees nobody.
    log_in(client)
    cookies = dict(client.cookies)
    client.cookies.clear()
    answer = client.get(PAGE, headers=LINK)
    assert answer.headers["location"] == f"../login?next={PAGE}"
    landing = client.get(f"/login?next={PAGE}", headers=LINK)
    assert landing.status_code == 200
    assert 'name="token"' not in landing.text
    again = f"./login?next={PAGE}&again=1"
    assert landing.headers["refresh"] == f"0; url={again}"
    # The landing page is the tower's own, so the browser sends the cookie from there.
    client.cookies.update(cookies)
    answer = client.get(again[1:], headers=OPEN | {"Sec-Fetch-Site": "same-origin"})
    assert (answer.status_code, answer.headers["location"]) == (303, f".{PAGE}")


def test_a_link_without_a_session_ends_at_the_form(client):
    answer = client.get("/login?again=1", headers=LINK)
    assert 'name="token"' in answer.text
    assert "refresh" not in answer.headers


def test_a_reader_reads_and_changes_nothing(client):
    log_in(client, "reader")
    page = client.get(PAGE, headers=OPEN).text
    assert f"{PAGE}/ack" not in page
    token = form_token_of(client)
    headers = OWN | {"X-Form-Token": token}
    assert_problem(client.post(ACK, json={}, headers=headers), 403, "rights of an operator")
    form = client.post(f"{PAGE}/ack", data={"form_token": token}, headers=OWN | OPEN)
    assert form.status_code == 403
    assert form.headers["content-type"].startswith("text/html")
    assert client.post("/ingest/v1/report", json={}, headers=headers).status_code == 403


def test_an_operator_s_script_needs_the_form_token_and_an_own_page(client):
    log_in(client)
    token = form_token_of(client)
    for wrong in (
        OWN,
        OWN | {"X-Form-Token": "x"},
        {"X-Form-Token": token},
        OWN | {"X-Form-Token": token, "Sec-Fetch-Site": "cross-site"},
        OWN | {"X-Form-Token": token, "Origin": "http://evil.example"},
    ):
        assert_problem(client.post(ACK, json={"by": "eve"}, headers=wrong), 403)
    assert client.get(f"/api/v1/incidents/{INCIDENT}").json()["ack"] is None
    right = OWN | {"X-Form-Token": token}
    assert client.post(ACK, json={"by": "bob"}, headers=right).json()["by"] == "bob"


def test_by_bearer_token_nothing_changes(client):
    log_in(client, "reader")
    bearer = {"Authorization": f"Bearer {TOKENS['operator']}", "Origin": "https://grafana.example"}
    assert client.post(ACK, json={"by": "bot"}, headers=bearer).status_code == 200
    unknown = {"Authorization": "Bearer a-token-that-nobody-was-given"}
    assert client.get("/api/v1/jobs", headers=unknown).status_code == 401


def test_a_logout_ends_the_session_for_copies_of_its_cookie_too(client):
    log_in(client)
    token, copied = form_token_of(client), client.cookies[COOKIE]
    answer = client.post("/logout", data={"form_token": token}, headers=OWN)
    assert (answer.status_code, answer.headers["location"]) == (303, "./login?again=1")
    assert "max-age=0" in answer.headers["set-cookie"].lower()
    client.cookies.clear()
    answer = client.get("/api/v1/jobs", headers={"Cookie": f"{COOKIE}={copied}"})
    assert_problem(answer, 401, "session has ended")
    assert refused(client, "ended_session") == 1


def test_a_page_of_another_site_logs_nobody_out(client):
    log_in(client)
    token = form_token_of(client)
    assert client.post("/logout", data={"form_token": token}, headers={}).status_code == 403
    assert client.post("/logout", data={"x": ""}, headers=OWN).status_code == 403
    assert client.get("/api/v1/jobs").status_code == 200


def test_a_second_login_ends_the_first_session(client):
    log_in(client)
    first = client.cookies[COOKIE]
    log_in(client, "reader")
    client.cookies.clear()
    assert client.get("/api/v1/jobs", headers={"Cookie": f"{COOKIE}={first}"}).status_code == 401


def test_two_cookies_of_the_name_count_as_none(client):
    log_in(client)
    value = client.cookies[COOKIE]
    client.cookies.clear()
    two = {"Cookie": f"{COOKIE}=x; {COOKIE}={value}"}
    assert client.get("/api/v1/jobs", headers=two).status_code == 401


def test_a_session_outlives_a_restart_of_the_tower(tmp_path):
    people = People(key=make_key())
    with tower_for(tmp_path, people=people) as client:
        log_in(client)
        cookies = dict(client.cookies)
    with tower_for(tmp_path, people=replace(people)) as client:
        client.cookies.update(cookies)
        assert client.get("/api/v1/jobs").status_code == 200


def test_pages_of_two_persons_have_different_tags_and_form_tokens(client):
    log_in(client)
    first, token = client.get(PAGE, headers=OPEN), form_token_of(client)
    log_in(client)
    asked = OPEN | {"If-None-Match": first.headers["etag"]}
    assert client.get(PAGE, headers=asked).status_code == 200
    assert form_token_of(client) != token
    assert "mark-" not in client.get(PAGE, headers=OPEN).text


def test_the_token_is_not_logged(client, caplog):
    with caplog.at_level("DEBUG"):
        log_in(client, "reader")
        log_in(client, "agent")
    own = [record.getMessage() for record in caplog.records if "watchtower" in record.name]
    assert any("login with a token for reader" in line for line in own)
    assert not any(token in line for token in TOKENS.values() for line in own)


def test_a_tower_without_tokens_has_no_login(tmp_path):
    with tower_for(tmp_path, with_tokens=False) as client:
        answer = client.get(f"/login?next={PAGE}", headers=OPEN)
        assert (answer.status_code, answer.headers["location"]) == (303, f".{PAGE}")
        assert log_in(client).headers["location"] == "./"
        assert "Log out" not in client.get("/", headers=OPEN).text


def test_a_page_contains_its_own_tag_so_that_the_first_question_gets_304(client):
    log_in(client)
    page = client.get(PAGE, headers=OPEN)
    (tag,) = re.findall(r'data-etag="([^"]+)"', page.text)
    assert page.headers["etag"] == f'"{tag}"'
    asked = OPEN | {"If-None-Match": page.headers["etag"]}
    assert client.get(PAGE, headers=asked).status_code == 304
