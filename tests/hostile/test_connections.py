"""Connections that say nothing, trickle, lie or never end, on real sockets."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from benchmarks import junk
from tests.diagnosers import in_thread
from tests.tower.test_api import recorded
from tests.towers import wait_until
from watchtower.access.scopes import TokenBook
from watchtower.api import connections, ingest, intake
from watchtower.api.connections import ConnectionLimit, connection_class
from watchtower.api.ingest import StoredBatches
from watchtower.api.security import AccessRules, Refusals
from watchtower.api.visitors import Visitors
from watchtower.app import make_app, serve
from watchtower.config import TowerConfig
from watchtower.core.policy import Policy
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.tower.tower import Tower
from watchtower.wire.bounds import MAX_REPORT_BYTES

SOON_S = 0.4
POST = b"POST /ingest/v1/report HTTP/1.1\r\nHost: tower\r\n"


class Server:
    """The tower's server in a thread, so that its deadlines can be made short."""

    def __init__(self, folder: Path, limit: int = 100, agent_token: str = "") -> None:
        self.refused: list[str] = []
        self.limit = ConnectionLimit(limit, self.refused.append)
        self.refusals = Refusals()
        self.store = SqliteStore(folder / "watchtower.db")
        tower = Tower(Policy(), self.store, self.store.recall(), Clock(), in_thread)
        book = TokenBook({}, {"WATCHTOWER_AGENT_TOKEN": agent_token})
        self.visitors = Visitors(book)
        app = make_app(tower, AccessRules(visitors=self.visitors, refusals=self.refusals))
        self.tower, self.direct = tower, app.direct
        config = uvicorn.Config(
            app,
            http=connection_class(self.limit, app.direct),
            ws="none",
            log_config=None,
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listener]}, daemon=True
        )
        self._thread.start()
        wait_until(lambda: self._server.started, "the server starts")

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        self._listener.close()
        self.store.close()

    def connect(self, head: bytes = b"") -> socket.socket:
        return junk.connect(self.address, head)

    def report(self) -> int:
        """Report as a good agent does; returns the status."""
        connection = http.client.HTTPConnection(*self.address, timeout=10)
        try:
            connection.request("POST", "/ingest/v1/report", recorded("report.json"))
            return connection.getresponse().status
        finally:
            connection.close()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for module, name in (
        (connections, "HEAD_S"),
        (connections, "LINGER_S"),
        (intake, "BODY_S"),
    ):
        monkeypatch.setattr(module, name, SOON_S)
    monkeypatch.setattr(connections, "REQUEST_S", 3 * SOON_S)
    made = Server(tmp_path)
    yield made
    made.close()


def read_all(connection: socket.socket) -> bytes:
    """Everything until the other side closes, which it must."""
    connection.settimeout(20)
    parts = []
    with contextlib.suppress(ConnectionResetError), connection:
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def read_reply(connection: socket.socket) -> bytes:
    """One reply with its body. Its parts may arrive one after the other."""
    reply = b""
    while b"\r\n\r\n" not in reply:
        part = connection.recv(4000)
        assert part, reply
        reply += part
    head, _, body = reply.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    while length and len(body) < int(length[1]):
        part = connection.recv(4000)
        assert part, reply
        body += part
    return head + b"\r\n\r\n" + body


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


def exchange(server: Server, *pieces: bytes) -> bytes:
    """Send the pieces of requests, the last of which closes the connection. Return the replies."""
    connection = server.connect()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for piece in pieces:
        connection.sendall(piece)
        time.sleep(0.01)
    return read_all(connection)


def post_of(body: bytes, *more: bytes) -> bytes:
    head = [POST + b"Content-Type: application/json", b"Content-Length: %d" % len(body), *more]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


LAST = (b"Connection: close",)


def test_a_usual_report_is_answered_by_the_connection_itself(server, monkeypatch):
    answered = []
    answer = server.direct.answer
    monkeypatch.setattr(
        server.direct, "answer", lambda *it: answered.append(answer(*it)) or answered[-1]
    )
    body = recorded("report.json")
    usual, last = post_of(body), post_of(body, *LAST)
    longer = post_of(body + 12_345 * b" ")
    at = usual.index(b"\r\n\r\n") + 4
    connection = server.connect()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for pieces in (
        [usual],
        [usual[:at], usual[at:-9], usual[-9:]],
        [longer[:-9], longer[-9:] + usual],
        [usual[:50], usual[50:]],
        [usual + last],
    ):
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(0.02)
    replies = read_all(connection)
    assert replies.count(b"HTTP/1.1 200 OK") == 7
    assert replies.count(b'"deadlines"') == 7
    assert len([each for each in answered if each]) == 4, "all but the first, split and last head"
    assert server.tower.counters.reports == 7
    assert not server.direct._intake._held._held.total


def test_reports_that_arrive_together_are_answered_in_turns(tmp_path, monkeypatch):
    """With no time for direct answers, each turn of the loop has one."""
    server = Server(tmp_path)
    usual = post_of(recorded("report.json"))
    last = post_of(recorded("report.json"), *LAST)
    with contextlib.ExitStack() as stack:
        stack.callback(server.close)
        many = [stack.enter_context(server.connect(usual)) for _ in range(20)]
        for connection in many:
            connection.settimeout(20)
            assert b"200 OK" in read_reply(connection)
        monkeypatch.setattr(connections, "ANSWERS_S", 0.0)
        gone, *rest = many
        for connection in many:
            connection.sendall(usual)
        gone.close()
        for connection in rest:
            assert b"200 OK" in read_reply(connection)
        for connection in rest:
            connection.sendall(usual[:-9])
            connection.sendall(usual[-9:] + 3 * usual + last)
        for connection in rest:
            assert read_all(connection).count(b"HTTP/1.1 200 OK") == 5
        wait_until(lambda: not server.direct._intake._held._held.total, "nothing is held")


@pytest.mark.parametrize(
    "head",
    [
        POST + b"Content-Length: %d\r\nX: y\n\n",
        POST + b"Content-Length:%d\r\n\r\n",
        POST + b"Content-Length: %d\r\nContent-Length: %d\r\n\r\n",
        POST + b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /ingest/v1/report HTTP/1.0\r\nContent-Length: %d\r\n\r\n",
        b"PUT /ingest/v1/report HTTP/1.1\r\nHost: tower\r\nContent-Length: %d\r\n\r\n",
        b"POST /ingest/v1/report?x HTTP/1.1\r\nHost: tower\r\nContent-Length: %d\r\n\r\n",
    ],
    ids=["bare newline", "no space", "twice", "chunked", "1.0", "PUT", "query"],
)
def test_no_head_that_is_not_plain_is_known_again(server, head, monkeypatch):
    """Whatever the parser makes of such a request, it does so for each of them."""
    answered = []
    monkeypatch.setattr(server.direct, "answer", lambda *it: answered.append(it))
    body = b"{}\r\n\r\n" + 100 * b" "
    request = head.replace(b"%d", b"%d" % len(body)) + body
    with server.connect(request) as connection:
        connection.settimeout(5)
        with contextlib.suppress(OSError):
            connection.recv(4000)
            connection.sendall(request + b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        read_all(connection)
    assert answered == []


def test_a_known_head_gives_no_rights_that_were_taken_away(tmp_path):
    old, new = ("t" * 43, "n" * 43)
    server = Server(tmp_path, agent_token=old)
    try:
        body = post_of(recorded("report.json"), b"Authorization: Bearer " + old.encode())
        connection = server.connect(body)
        connection.settimeout(10)
        for _ in range(3):
            assert b"200 OK" in read_reply(connection)
            connection.sendall(body)
        assert b"200 OK" in read_reply(connection)
        book = server.visitors.book
        book._known = TokenBook({}, {"WATCHTOWER_AGENT_TOKEN": new}).known
        connection.sendall(body)
        assert b"401" in read_reply(connection).partition(b"\r\n")[0]
        connection.close()
    finally:
        server.close()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (post_of(b"{"), b"400"),
        (post_of(recorded("report.json").replace(b'"version": 1', b'"version": 99')), b"400"),
        (post_of(recorded("report.json"), b"Content-Encoding: gzip"), b"415"),
        (post_of(recorded("report.json"), b"Expect: 100-continue"), b"100"),
        (POST + b"Content-Length: 0\r\n\r\n", b"400"),
    ],
    ids=["no JSON", "other version", "compressed", "expects", "empty"],
)
def test_the_application_answers_reports_that_are_not_usual(server, request_, status):
    replies = exchange(server, request_, post_of(recorded("report.json"), *LAST))
    assert replies.partition(b"\r\n")[0].split()[1] == status
    assert b"HTTP/1.1 200 OK" in replies
    assert not server.direct._intake._held._held.total


def test_an_agent_that_reports_too_often_costs_only_itself(server):
    body = recorded("report.json")
    other = body.replace(b'"agent_id": "', b'"agent_id": "other-')
    assert other != body
    flood = exchange(server, *[20 * post_of(body)] * 5, post_of(body, *LAST))
    assert flood.count(b"HTTP/1.1 200 OK") == 101
    processed = server.tower.counters.reports
    assert processed < 50 < server.tower.counters.early_reports
    assert flood.count(b'"deadlines"') == 101, "the agent keeps its deadlines"
    exchange(server, post_of(other, *LAST))
    assert server.tower.counters.reports == processed + 1


def test_a_sender_without_a_token_holds_no_memory(tmp_path, monkeypatch):
    """It is refused by its headers: nothing is counted, and its body is not awaited."""
    monkeypatch.setattr(connections, "DIRECT_BODY_S", 60.0)
    token = "t" * 43
    server = Server(tmp_path, agent_token=token)
    try:
        held = server.direct._intake._held._held
        right = b"Authorization: Bearer " + token.encode()
        body = b" " * 60_000
        for wrong in (b"X: y", right[:-1] + b"u"):
            head = post_of(body, wrong)[: -len(body)]
            with server.connect(head) as connection:
                connection.settimeout(10)
                assert b"401" in connection.recv(100).partition(b"\r\n")[0]
            assert held.total == 0
        good = post_of(recorded("report.json"), right)
        with server.connect(good) as connection:
            assert b"200 OK" in read_reply(connection)
            connection.sendall(post_of(body, right)[:-1])
            wait_until(lambda: held.total == len(body), "the body of an agent is held")
        wait_until(lambda: held.total == 0, "its connection has ended")
        good, last = (post_of(recorded("report.json"), right, *more) for more in ((), LAST))
        assert exchange(server, good, last).count(b"HTTP/1.1 200 OK") == 2
    finally:
        server.close()


def test_the_last_report_of_an_agent_is_processed_also_after_a_flood(server, monkeypatch):
    body = recorded("report.json")
    last = body.replace(b'"stopping": false', b'"stopping": true')
    assert last != body
    taken, take = [], server.tower.take_report
    monkeypatch.setattr(
        server.tower, "take_report", lambda *it: taken.append(it[0].stopping) or take(*it)
    )
    exchange(server, *[20 * post_of(body)] * 5, 20 * post_of(last), post_of(last, *LAST))
    assert taken.index(True) == taken.count(False)
    assert taken.count(True) < 10, "more of them are as early as any other"


def test_a_report_with_a_late_error_is_processed_once(server, monkeypatch, caplog):
    taken, take = [], server.tower.take_report

    def fail(*arguments):
        taken.append(take(*arguments))
        raise ZeroDivisionError("late")

    body = recorded("report.json")
    with server.connect(post_of(body)) as connection:
        assert b"HTTP/1.1 200 OK" in read_reply(connection)
        monkeypatch.setattr(server.tower, "take_report", fail)
        connection.sendall(post_of(body))
        replies = read_reply(connection)
        assert b"HTTP/1.1 500 " in replies
        assert b"the tower failed (ZeroDivisionError)" in replies
        monkeypatch.undo()
        connection.sendall(post_of(body))
        assert b"HTTP/1.1 200 OK" in read_reply(connection), "the connection goes on"
    assert len(taken) == 1
    assert "a request to /ingest/v1/report failed" in caplog.text
    assert not server.direct._intake._held._held.total


def test_a_batch_of_dumps_that_is_sent_again_is_confirmed_without_being_handled(
    server, monkeypatch
):
    taken, take = [], server.tower.take_dumps
    monkeypatch.setattr(server.tower, "take_dumps", lambda it: taken.append(it) or take(it))
    body = recorded("dumps.json")
    ident = re.search(rb'"id": ?"([^"]+)"', body)[1]
    other = body.replace(ident, b"another-id")

    def send(sent: bytes) -> bytes:
        head = b"POST /ingest/v1/dumps HTTP/1.1\r\nHost: tower\r\nConnection: close\r\n"
        head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(sent)
        return read_all(server.connect(head + sent))

    for sent, count in ((body, 1), (body, 1), (other, 2), (body, 2), (other, 2)):
        reply = send(sent)
        assert b"HTTP/1.1 200 OK" in reply
        assert (ident if sent is body else b"another-id") in reply
        assert len(taken) == count
    stored = StoredBatches(2)
    for number in range(4):
        stored.note("n", "n", str(number))
    assert [stored.find("n", b'{"node":"n","id":"%d"}' % n) for n in range(4)] == [
        None,
        None,
        "2",
        "3",
    ]
    assert stored.find("m", b'{"node":"n","id":"3"}') is None
    assert stored.find("n", b"{") is None
