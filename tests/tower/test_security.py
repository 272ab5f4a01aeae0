"""The permissions of every route, in process with a real store."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest
from starlette.routing import BaseRoute, Route
from starlette.testclient import TestClient

from tests.diagnosers import in_thread
from tests.tower.test_api import assert_problem, recorded
from watchtower.access.tokens import TokenBook
from watchtower.api.front import Front
from watchtower.api.security import LOG_EVERY_S, AccessRules, Guard, Refusals
from watchtower.api.visitors import Visitors
from watchtower.app import make_app
from watchtower.policy import Policy
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.tower.tower import Tower

TOKENS = {scope: f"{scope}-token-of-the-tests" for scope in ("agent", "reader", "operator")}
UNKNOWN = "a-token-that-nobody-was-given"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory):
    store = SqliteStore(tmp_path_factory.mktemp("store") / "watchtower.db")
    environment = {f"WATCHTOWER_{name.upper()}_TOKEN": token for name, token in TOKENS.items()}
    yield make_app(
        Tower(Policy(), store, store.recall(), Clock(), in_thread),
        AccessRules(visitors=Visitors(TokenBook({}, environment))),
    )
    store.close()


@pytest.fixture(scope="module")
def client(app):
    with TestClient(app) as client:
        yield client


def call(client: TestClient, method: str, path: str, token: str | None = None, **more):
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return client.request(method, path, headers=headers, **more)


def routes_of(app: Front) -> list[tuple[str, str]]:
    """Return every (method, path) of an app."""

    def walk(routes: list[BaseRoute]):
        for route in routes:
            inner = getattr(route, "original_router", None)
            if inner is not None:
                yield from walk(inner.routes)
            elif isinstance(route, Route):
                for method in sorted(route.methods or ()):
                    yield method, route.path
            else:
                raise AssertionError(f"a route of a kind that is not checked: {route!r}")

    return list(walk(app.routes))


def allowed(method: str, path: str) -> set[str]:
    if path in ("/healthz", "/readyz", "/login", "/logout") or path.startswith("/static/"):
        return {"nobody", "unknown", *TOKENS}
    if path.startswith("/ingest/"):
        return {"agent"}
    return {"reader", "operator"} if method in ("GET", "HEAD") else {"operator"}


def test_every_route_is_open_to_its_scopes_and_to_no_other(app, client):
    routes = routes_of(app)
    assert {"/ingest/v1/report", "/api/v1/jobs", "/metrics", "/docs", "/openapi.json"} <= {
        path for _, path in routes
    }
    for method, path in routes:
        for who in ("nobody", "unknown", *TOKENS):
            token = {"nobody": None, "unknown": UNKNOWN}.get(who, TOKENS.get(who))
            headers = {"Origin": "http://testserver"}
            if token is not None:
                headers["Authorization"] = f"Bearer {token}"
            answer = client.request(method, path, headers=headers, follow_redirects=False)
            status = answer.status_code
            if who in allowed(method, path):
                assert status not in (401, 403), (method, path, who)
            else:
                assert status == (403 if who in TOKENS else 401), (method, path, who)


def test_without_a_token_the_answer_does_not_show_what_exists(client):
    assert_problem(call(client, "GET", "/nothing"), 401)
    assert_problem(call(client, "GET", "/api/v1/jobs/none"), 401)
    assert_problem(call(client, "PUT", "/nothing", TOKENS["reader"]), 403, "operator")
    assert_problem(call(client, "GET", "/ingest/../api/v1/jobs", TOKENS["agent"]), 403)
    assert_problem(call(client, "GET", "//healthz"), 401)


def test_a_refusal_says_how_to_show_a_token_and_not_which_there_are(client):
    response = call(client, "GET", "/api/v1/jobs")
    assert_problem(response, 401, "needs a token", "Authorization: Bearer TOKEN")
    assert response.headers["WWW-Authenticate"] == 'Bearer realm="watchtower"'
    response = call(client, "GET", "/api/v1/jobs", UNKNOWN)
    assert_problem(response, 401, "does not know this token")
    response = call(client, "GET", "/api/v1/jobs", TOKENS["agent"])
    assert_problem(
        response, 403, "needs a token for operator or reader, but the token is for agent"
    )
    assert "insufficient_scope" in response.headers["WWW-Authenticate"]


@pytest.mark.parametrize(
    "headers",
    [
        [("Authorization", TOKENS["reader"])],
        [("Authorization", f"Basic {TOKENS['reader']}")],
        [("Authorization", "Bearer")],
        [("Authorization", "Bearer  ")],
        [("Authorization", f"Bearer {TOKENS['reader']}x")],
        [("Authorization", f"Bearer {TOKENS['reader'].upper()}")],
        [("Authorization", f"Bearer {UNKNOWN}"), ("Authorization", f"Bearer {TOKENS['reader']}")],
        [("X-Token", TOKENS["reader"])],
        [("Cookie", f"token={TOKENS['reader']}")],
    ],
)
def test_a_token_counts_in_its_header_alone(client, headers):
    assert client.get("/api/v1/jobs", headers=headers).status_code == 401


@pytest.mark.parametrize("key", ["token", "access_token", "authorization"])
def test_a_token_in_the_address_is_not_taken(client, key):
    assert client.get(f"/api/v1/jobs?{key}={TOKENS['reader']}").status_code == 401


def test_the_word_bearer_may_be_written_in_any_case(client):
    for kind in ("bearer", "BEARER"):
        headers = {"Authorization": f"{kind}  {TOKENS['reader']} "}
        assert client.get("/api/v1/jobs", headers=headers).status_code == 200


def test_an_agent_may_report_and_not_read_what_it_reported(client):
    body = recorded("report.json")
    assert call(client, "POST", "/ingest/v1/report", TOKENS["agent"], content=body).is_success
    for path in ("/api/v1/jobs/llama-70b", "/api/v1/jobs/llama-70b/verdict", "/metrics"):
        assert_problem(call(client, "GET", path, TOKENS["agent"]), 403)
        assert call(client, "GET", path, TOKENS["operator"]).is_success
    response = call(client, "POST", "/ingest/v1/report", TOKENS["operator"], content=body)
    assert_problem(response, 403, "needs a token for agent")


def test_a_body_is_not_read_before_the_token_is_known():
    async def anything(*_: object) -> dict:
        raise AssertionError("the body was read, or the request passed on")

    async def story() -> list[dict]:
        sent: list[dict] = []

        async def send(message: dict) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/ingest/v1/report", "headers": []}
        book = TokenBook({}, {"WATCHTOWER_AGENT_TOKEN": TOKENS["agent"]})
        await Guard(anything, AccessRules(visitors=Visitors(book)))(scope, anything, send)
        return sent

    assert asyncio.run(story())[0]["status"] == 401


def test_readiness_needs_no_token_and_the_names_of_nodes_need_one(client):
    message = json.loads(recorded("report.json"))
    message["limits"] = {"python_stacks": "py-spy is not installed"}
    call(client, "POST", "/ingest/v1/report", TOKENS["agent"], json=message)
    for token in (None, UNKNOWN, TOKENS["agent"]):
        health = call(client, "GET", "/readyz", token).json()
        assert health["ready"] is True
        assert health["limits"] == ["a reader's token shows them"]
    health = call(client, "GET", "/readyz", TOKENS["reader"]).json()
    assert health["limits"] == ["gpu-042: py-spy is not installed"]


def test_refusals_are_counted_by_reason(client):
    def count(reason: str) -> float:
        page = call(client, "GET", "/metrics", TOKENS["reader"]).text
        word = f'watchtower_refused_requests_total{{reason="{reason}"}} '
        return float(page.partition(word)[2].partition("\n")[0])

    before = {reason: count(reason) for reason in ("no_token", "unknown_token", "wrong_scope")}
    call(client, "GET", "/api/v1/jobs")
    call(client, "GET", "/api/v1/jobs", UNKNOWN)
    call(client, "GET", "/api/v1/jobs", TOKENS["agent"])
    assert {reason: count(reason) - 1 for reason in before} == before


def test_refusals_are_logged_at_a_bounded_rate(caplog):
    refusals = Refusals()
    for number in range(1000):
        refusals.add("no_token", "10.0.0.9", now=number / 1000)
    assert caplog.messages == [
        "1 requests refused since the last such line, the latest from 10.0.0.9: no token"
    ]
    refusals.add("wrong_scope", "10.0.0.8", now=LOG_EVERY_S)
    assert "1000 requests refused" in caplog.messages[1]
    assert "10.0.0.8: wrong scope" in caplog.messages[1]


def test_no_token_is_ever_logged(client, caplog):
    with caplog.at_level(logging.DEBUG):
        for token in (*TOKENS.values(), UNKNOWN):
            call(client, "GET", f"/api/v1/jobs?token={token}", token)
            call(client, "POST", "/ingest/v1/report", token, content=b"{")
    own = "\n".join(r.getMessage() for r in caplog.records if r.name.startswith("watchtower"))
    for token in (*TOKENS.values(), UNKNOWN):
        assert token not in own


def test_the_reference_page_loads_nothing_and_lists_every_call(client):
    response = call(client, "GET", "/docs", TOKENS["reader"])
    assert response.headers["content-security-policy"].startswith("default-src 'none'")
    assert response.headers["x-content-type-options"] == "nosniff"
    for word in ("<script", "http://", "https://", "src=", "@import"):
        assert word not in response.text
    paths = call(client, "GET", "/openapi.json", TOKENS["reader"]).json()["paths"]
    for path, methods in paths.items():
        for method in methods:
            assert f"{method.upper()} {path}" in response.text


def test_the_openapi_document_declares_the_bearer_scheme(client):
    document = call(client, "GET", "/openapi.json", TOKENS["reader"]).json()
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    assert {"bearer": []} in document["security"]


def test_a_tower_without_tokens_asks_for_none(tmp_path: Path):
    store = SqliteStore(tmp_path / "watchtower.db")
    with TestClient(make_app(Tower(Policy(), store, store.recall(), Clock(), in_thread))) as client:
        assert client.get("/api/v1/jobs").status_code == 200
        assert client.post("/ingest/v1/report", content=recorded("report.json")).is_success
        assert client.get("/readyz", headers={"Authorization": "Bearer x"}).json()["ready"]
    store.close()
