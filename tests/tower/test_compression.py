"""Which answers are compressed, and that they are the same otherwise."""

from __future__ import annotations

import gzip

import pytest
from starlette.applications import Starlette
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from watchtower.api.middleware import LEAST_BYTES, Compression, EntityTags

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
def client():
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


def test_the_bytes_of_all_ranks_are_compressed_for_clients_that_accept_it(client):
    body, headers = raw(client, "/api/v1/jobs/a/ranks.bin")
    assert gzip.decompress(body) == BODY
    assert len(body) < len(BODY) / 20
    assert (headers["content-encoding"], headers["vary"]) == ("gzip", "Accept-Encoding")
    assert int(headers["content-length"]) == len(body)
    again = {"Accept-Encoding": "gzip", "If-None-Match": headers["etag"]}
    unchanged = client.get("/api/v1/jobs/a/ranks.bin", headers=again)
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
def test_other_answers_stay_as_they_are(client, path, accepted, expected):
    body, headers = raw(client, path, accepted)
    assert body == expected
    assert "content-encoding" not in headers
