"""Bodies of the API's requests are limited before they are parsed."""

from __future__ import annotations

import json

import pytest

from tests.tower.test_api import assert_problem
from watchtower.api.middleware import MAX_BODY_BYTES
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
