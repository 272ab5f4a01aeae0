"""What is between the API and the network: limits of bodies, entity tags, compression."""

from __future__ import annotations

import gzip
import json

import pytest
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from tests.store.test_incident_filter import naming
from tests.tower.test_api import assert_problem, recorded
from tests.tower.test_incident_lists import save
from watchtower.api.middleware import (
    LEAST_BYTES,
    MAX_BODY_BYTES,
    MAX_COMPARED,
    Compression,
    EntityTags,
)
from watchtower.wire.bounds import MAX_NAME, MAX_TEXT

PATH, JSON = "/api/v1/silences", {"Content-Type": "application/json"}


def pieces(count: int):
    yield b'{"job": "'
    for _ in range(count // 1024):
        yield b"x" * 1024
    yield b'"}'


@pytest.mark.parametrize("body", [b"x" * (MAX_BODY_BYTES + 1), pieces(2 * MAX_BODY_BYTES)])
def test_a_larger_body_is_refused_with_or_without_its_length(client, body):
    assert_problem(client.post(PATH, content=body, headers=JSON), 413, f"{MAX_BODY_BYTES} bytes")


@pytest.mark.parametrize("length", ["9" * 30, "-1", "x", "\u0664"])
def test_a_strange_length_is_no_internal_error(client, length):
    headers = JSON | {"Content-Length": length.encode()}
    assert client.post(PATH, content=b"{}", headers=headers).status_code in (413, 422)


def test_the_longest_valid_body_is_accepted(client):
    bomb = "\U0001f4a3"
    body = {"job": "x" * MAX_NAME, "for_s": 60, "reason": bomb * MAX_TEXT, "by": bomb * MAX_NAME}
    sent = json.dumps(body).encode()
    assert len(sent) < MAX_BODY_BYTES
    assert client.post(PATH, content=sent, headers=JSON).status_code == 200


@pytest.mark.parametrize("body", [b"\xff\xfe", b"[" * 60_000, b'{"job": "\\ud800", "for_s": 9}'])
def test_what_is_no_text_is_refused_and_not_a_failure(client, body):
    answer = client.post(PATH, content=body, headers=JSON)
    assert_problem(answer, answer.status_code)
    assert answer.status_code in (400, 422), answer.text


ANSWERS = (
    "/api/v1/incidents",
    "/api/v1/incidents/01A",
    "/api/v1/incidents/01A?format=markdown",
    "/api/v1/jobs",
    "/api/v1/jobs/llama/verdict",
    "/api/v1/outages",
    "/api/v1/silences",
)


@pytest.mark.parametrize("path", ANSWERS)
def test_an_unchanged_answer_is_304_without_a_body(client, tower, path):
    save(tower, naming(("a", None), id="01A", closed_at=200.0))
    first = client.get(path)
    tag = first.headers["etag"]
    assert first.headers["cache-control"] == "private, no-cache"
    for sent in (tag, f'"x", W/{tag}', "*"):
        again = client.get(path, headers={"If-None-Match": sent})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert again.headers["x-content-type-options"] == "nosniff"
    for sent in ("", '"x"', "," * (MAX_COMPARED + 1) + tag):
        assert client.get(path, headers={"If-None-Match": sent}).content == first.content


def test_a_changed_answer_has_another_tag(client, tower):
    before = client.get("/api/v1/incidents").headers["etag"]
    save(tower, naming(("a", None), id="01A"))
    answer = client.get("/api/v1/incidents", headers={"If-None-Match": before})
    assert answer.status_code == 200
    client.post("/ingest/v1/report", content=recorded("report.json"))
    tag = client.get("/api/v1/jobs").headers["etag"]
    client.post("/api/v1/silences", json={"job": "llama-70b", "for_s": 60})
    assert client.get("/api/v1/jobs", headers={"If-None-Match": tag}).status_code == 200


def test_errors_and_exports_have_no_tag(client, tower):
    save(tower, naming(("a", None), id="01A"))
    for path in ("/api/v1/incidents/02", "/api/v1/incidents/01A/export", "/healthz"):
        assert "etag" not in client.get(path, headers={"If-None-Match": "*"}).headers


BODY = b"\x01\x00\x00" * LEAST_BYTES


async def ranks(_):
    return Response(BODY, media_type="application/octet-stream")


async def small(_):
    return Response(b"\x01\x00\x00")


async def stream(_):
    async def parts():
        for _ in range(3):
            yield BODY

    return StreamingResponse(parts())


@pytest.fixture(scope="module")
def compressing():
    routes = [
        Route("/api/v1/jobs/a/ranks.bin", ranks),
        Route("/api/v1/jobs/b/ranks.bin", small),
        Route("/api/v1/jobs/c/ranks", stream),
        Route("/api/v1/jobs", ranks),
    ]
    with TestClient(Compression(EntityTags(Starlette(routes=routes)))) as client:
        yield client


def raw(client: TestClient, path: str, accepted: str = "gzip, br") -> tuple[bytes, dict[str, str]]:
    with client.stream("GET", path, headers={"Accept-Encoding": accepted}) as answer:
        return b"".join(answer.iter_raw()), dict(answer.headers)


def test_the_bytes_of_all_ranks_are_compressed_for_clients_that_accept_it(compressing):
    body, headers = raw(compressing, "/api/v1/jobs/a/ranks.bin")
    assert gzip.decompress(body) == BODY
    assert len(body) < len(BODY) / 20
    assert (headers["content-encoding"], headers["vary"]) == ("gzip", "Accept-Encoding")
    assert int(headers["content-length"]) == len(body)
    again = {"Accept-Encoding": "gzip", "If-None-Match": headers["etag"]}
    unchanged = compressing.get("/api/v1/jobs/a/ranks.bin", headers=again)
    assert (unchanged.status_code, unchanged.headers["vary"]) == (304, "Accept-Encoding")


@pytest.mark.parametrize(
    ("path", "accepted", "expected"),
    [
        ("/api/v1/jobs/a/ranks.bin", "identity", BODY),
        ("/api/v1/jobs/a/ranks.bin", "br, gzip; q=0", BODY),
        ("/api/v1/jobs/a/ranks.bin", "gzip;q=0.000", BODY),
        ("/api/v1/jobs/b/ranks.bin", "gzip", b"\x01\x00\x00"),
        ("/api/v1/jobs/c/ranks", "gzip", BODY * 3),
        ("/api/v1/jobs", "gzip", BODY),
    ],
)
def test_other_answers_stay_as_they_are(compressing, path, accepted, expected):
    body, headers = raw(compressing, path, accepted)
    assert body == expected
    assert "content-encoding" not in headers
