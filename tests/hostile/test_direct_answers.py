"""Reports that a connection answers by itself, and those that it leaves to the application."""

from __future__ import annotations

import contextlib
import re
import socket
import time

import pytest

from tests.hostile.servers import POST, Server, read_all, read_reply
from tests.tower.test_api import recorded
from tests.waiting import wait_until
from watchtower.access.tokens import TokenBook
from watchtower.api import connections
from watchtower.api.ingest import StoredBatches


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
    connection.settimeout(20)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for pieces in ([usual], [usual[:at], usual[at:-9], usual[-9:]], [longer[:-9], longer[-9:]]):
        for piece in pieces:
            connection.sendall(piece)
            time.sleep(0.02)
        assert b"200 OK" in read_reply(connection)
    assert len([each for each in answered if each]) >= 2, "all but the first"
    connection.sendall(usual[:50])
    time.sleep(0.02)
    connection.sendall(usual[50:])
    assert b"200 OK" in read_reply(connection)
    connection.sendall(usual + last)
    assert read_all(connection).count(b'"deadlines"') == 2
    assert server.tower.counters.reports == 6
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
