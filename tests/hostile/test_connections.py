"""Connections that say nothing, trickle, lie or never end, on real sockets."""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import time

import pytest

from tests.hostile.servers import POST, SOON_S, Server, read_all
from tests.tower.test_api import recorded
from tests.waiting import wait_until
from watchtower.api import connections, ingest
from watchtower.app import serve
from watchtower.config import TowerConfig
from watchtower.wire.bounds import MAX_REPORT_BYTES


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"P",
        POST,
        POST + b"X: y",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
    ],
    ids=["nothing", "one byte", "no end", "half a header", "no last line", "TLS"],
)
def test_a_head_that_does_not_come_to_its_end_is_cut_off(server, head):
    began = time.monotonic()
    read_all(server.connect(head))
    assert time.monotonic() - began < 10
    assert server.report() == 200


def test_a_head_that_trickles_is_cut_off_all_the_same(server):
    connection = server.connect(POST)
    with contextlib.suppress(OSError):
        for _ in range(400):
            connection.sendall(b"X")
            time.sleep(0.02)
        pytest.fail("it was read for 8 s")
    connection.close()


def test_a_body_that_trickles_is_refused_in_words(server):
    connection = server.connect(POST + b"Content-Length: 1000\r\n\r\n{")
    assert b"408" in read_all(connection).partition(b"\r\n")[0]


def test_chunks_without_end_are_refused_in_words(server):
    connection = server.connect(POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
    assert b"408" in read_all(connection).partition(b"\r\n")[0]


@pytest.mark.parametrize(
    "flood",
    [
        POST + b"X: " + b"y" * 2_000_000,
        POST + b"X: y\r\n" * 400_000,
        b"GET /" + b"a" * 2_000_000,
        POST + b"Transfer-Encoding: chunked\r\n\r\n5;" + b"x" * 2_000_000,
        POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * 400_000,
        POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"y" * 2_000_000,
    ],
    ids=["header", "headers", "address", "chunk extension", "trailers", "trailer"],
)
def test_heads_and_trailers_without_end_are_cut_off(server, flood):
    began = time.monotonic()
    connection = server.connect()
    with pytest.raises(OSError, match=r"reset|Broken pipe"):  # noqa: PT012
        connection.sendall(flood)
        connection.sendall(flood)
        read_whole = connection.recv(65536)
        connection.sendall(flood)
        assert read_whole
        raise AssertionError("all of it was taken")
    assert time.monotonic() - began < 10
    connection.close()
    assert server.report() == 200


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (POST + b"Content-Length: 99999999999999999999\r\n\r\n", (b"400", b"413")),
        (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", (b"400",)),
        (POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", (b"400",)),
        (b"GET / HTTP/9.9\r\n\r\n", (b"400",)),
        (os.urandom(2000).replace(b"\n", b"") + b"\r\n\r\n", (b"400",)),
        (b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n", (b"400", b"404")),
        (b"GET /%ff%00%0a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", (b"404",)),
    ],
)
def test_what_is_no_good_http_is_refused(server, head, status):
    assert read_all(server.connect(head)).partition(b"\r\n")[0].split()[1] in status
    assert server.report() == 200


def test_garbage_behind_good_requests_harms_only_its_own_connection(server):
    good = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    text = read_all(server.connect(good * 50 + b"\x00\xff" * 500))
    assert b"400 Bad Request" in text
    assert server.report() == 200


def test_an_answer_is_not_lost_when_the_body_was_not_wanted(server):
    body = b" " * (MAX_REPORT_BYTES + 1)
    connection = http.client.HTTPConnection(*server.address, timeout=20)
    connection.request("POST", "/ingest/v1/report", body)
    assert connection.getresponse().status == 413
    connection.close()


def test_an_answer_that_nobody_fetches_is_let_go(server):
    held = server.connect(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 3000)
    wait_until(lambda: not server.limit._open.total, "the connection is gone")
    held.close()


def test_an_idle_client_keeps_its_connection_between_reports(server):
    connection = http.client.HTTPConnection(*server.address, timeout=20)
    connection.connect()
    kept = connection.sock
    for _ in range(3):
        connection.request("POST", "/ingest/v1/report", recorded("report.json"))
        assert connection.getresponse().read()
        time.sleep(2 * SOON_S)
    assert connection.sock is kept
    connection.close()


def test_one_address_gets_half_of_the_connections_and_others_the_rest(tmp_path):
    server = Server(tmp_path, limit=20)
    try:
        idle = [server.connect() for _ in range(30)]
        wait_until(lambda: len(server.refused) == 20, "what is too much is refused")
        other = http.client.HTTPConnection(
            *server.address, timeout=10, source_address=("127.0.0.2", 0)
        )
        other.request("GET", "/healthz")
        assert other.getresponse().status == 200
        other.close()
        for each in idle:
            each.close()
        wait_until(lambda: server.limit._open.total == 0, "all have left")
        assert server.report() == 200
    finally:
        server.close()


def test_bodies_take_no_more_memory_than_there_is_for_them(tmp_path, monkeypatch):
    monkeypatch.setattr(ingest, "MAX_HELD_REPORTS_BYTES", 160_000)
    server = Server(tmp_path)
    try:
        start = POST + b"Content-Length: 60000\r\n\r\n" + b" " * 50_000
        with server.connect(start) as first:
            wait_until(lambda: server.limit._open.total == 1, "it is connected")
            time.sleep(SOON_S)
            with server.connect(start) as second:
                assert b"503" in second.recv(100)
            first.sendall(b" " * 10_000)
            assert b"400" in first.recv(100)
        assert server.report() == 200
    finally:
        server.close()


@pytest.mark.parametrize(
    ("soft", "hard", "raised"), [(256, 4096, 4096), (1024, 512, None), (65536, 65536, None)]
)
def test_a_process_takes_as_many_descriptors_as_it_may(monkeypatch, soft, hard, raised):
    limits = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    most = connections.MAX_CONNECTIONS + connections.RESERVED_DESCRIPTORS
    assert connections.raise_descriptor_limit() == (
        min(hard, most) - connections.RESERVED_DESCRIPTORS
    )
    assert limits == ([] if raised is None else [(raised, hard)])


def test_a_process_that_may_open_too_few_files_is_told_so(monkeypatch, tmp_path):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 500))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: None)
    with pytest.raises(OSError, match=r"may open 500 files, but a tower needs at least 512: raise"):
        serve(TowerConfig(port=0, data_dir=str(tmp_path / "data")))
    assert not (tmp_path / "data").exists()
