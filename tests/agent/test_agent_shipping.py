"""Delivery over real HTTP: retries, refusals, replies that make no sense."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from agent_scene import RecordingTower, wait_until

from agent.config import MAX_REPLY_BYTES, MAX_WAITING_BATCHES
from agent.shipping import DumpSender, MemoryQueue, ReportSender
from agent.tower_client import TowerAddress, TowerClient, TowerError
from watchtower.wire.dumps import DumpBatch
from watchtower.wire.orders import ReportReply
from watchtower.wire.report import Report

PROBLEM = b'{"title": "Not this way", "detail": "the node is unknown"}'


def a_batch(batch_id: str = "b1") -> DumpBatch:
    return DumpBatch(
        version=1,
        id=batch_id,
        node="n1",
        job="j",
        round=1,
        reason="deadline",
        held_s=0.0,
        ranks=(),
        stacks=(),
    )


def a_report(agent_id: str = "a") -> Report:
    return Report(version=1, node="n1", agent_id=agent_id, interval_s=1.0)


@pytest.fixture
def dumps(tower: RecordingTower) -> DumpSender:
    sender = DumpSender(TowerClient(TowerAddress(url=tower.url)), MemoryQueue())
    sender.start()
    return sender


class Replies:
    """A report sender, and what it heard."""

    def __init__(self, url: str) -> None:
        self.heard: list[ReportReply] = []
        self.failures = threading.Semaphore(0)
        self.sender = ReportSender(
            TowerClient(TowerAddress(url=url)),
            on_reply=self.heard.append,
            on_failure=self.failures.release,
        )
        self.sender.start()


@pytest.fixture
def replies(tower: RecordingTower) -> Replies:
    return Replies(tower.url)


def test_a_dump_says_how_long_it_was_held(tower: RecordingTower, dumps: DumpSender) -> None:
    dumps.deliver(a_batch(), time.monotonic() - 7.0)
    wait_until(lambda: tower.dumps, "the dump arrives")
    assert 7.0 <= tower.dumps[0]["held_s"] < 60.0


def test_a_dump_is_sent_again_until_the_tower_has_it(
    tower: RecordingTower, dumps: DumpSender
) -> None:
    tower.dump_answers = [(503, b""), (429, PROBLEM), (200, b"nonsense"), (200, b'{"id": "x"}')]
    dumps.deliver(a_batch("first"), time.monotonic())
    dumps.deliver(a_batch("second"), time.monotonic())
    wait_until(lambda: len(tower.dumps) == 2, "both arrive", patience_s=60.0)
    assert [batch["id"] for batch in tower.dumps] == ["first", "second"]


def test_a_dump_that_the_tower_refuses_is_dropped(
    tower: RecordingTower, dumps: DumpSender, caplog: pytest.LogCaptureFixture
) -> None:
    tower.dump_answers = [(422, PROBLEM)]
    dumps.deliver(a_batch("bad"), time.monotonic())
    dumps.deliver(a_batch("good"), time.monotonic())
    wait_until(lambda: tower.dumps, "the next one arrives")
    assert [batch["id"] for batch in tower.dumps] == ["good"]
    assert "dropped: HTTP 422 the node is unknown" in caplog.text


def test_no_more_dumps_wait_than_there_is_room_for(caplog: pytest.LogCaptureFixture) -> None:
    queue = MemoryQueue()
    for number in range(MAX_WAITING_BATCHES + 2):
        queue.put(a_batch(str(number)), 0.0)
    first = queue.first()
    assert first is not None
    assert first[0].id == "2"
    assert "too many wait" in caplog.text


def test_a_reply_is_handed_on(tower: RecordingTower, replies: Replies) -> None:
    tower.orders = [{"id": "o1", "job": "j", "expires_s": 5.0, "newer_field": 1}]
    replies.sender.offer(a_report())
    wait_until(lambda: replies.heard, "the reply comes")
    assert replies.heard[0].orders[0].id == "o1"


@pytest.mark.parametrize(
    "answer",
    [
        (200, b"<html>"),
        (200, b'{"version": 99, "tower_id": "t"}'),
        (200, b'{"version": 1, "tower_id": "t", "deadlines": [{"job": "j"}]}'),
        (200, b" " * (MAX_REPLY_BYTES + 1)),
        (500, b""),
        (422, PROBLEM),
    ],
)
def test_a_reply_that_makes_no_sense_is_ignored_and_the_next_report_is_sent(
    tower: RecordingTower, replies: Replies, answer: tuple[int, bytes]
) -> None:
    tower.report_answers = [answer]
    replies.sender.offer(a_report("one"))
    assert replies.failures.acquire(timeout=30)
    assert replies.heard == []
    replies.sender.offer(a_report("two"))
    wait_until(lambda: replies.heard, "the next reply comes")


def test_only_the_newest_report_is_sent_when_the_tower_was_slow(
    tower: RecordingTower, replies: Replies
) -> None:
    gate = threading.Event()
    answer = tower.answer

    def slowly(path: str, body: object, headers: dict[str, str]) -> tuple[int, bytes]:
        gate.wait(30)
        return answer(path, body, headers)

    tower.answer = slowly  # type: ignore[method-assign]
    for name in ("one", "two", "three"):
        replies.sender.offer(a_report(name))
        wait_until(lambda n=name: n != "one" or replies.sender._report is None, "it is taken")  # type: ignore[misc]
    gate.set()
    wait_until(lambda: len(replies.heard) == 2, "two replies come")
    assert [report["agent_id"] for report in tower.reports] == ["one", "three"]


def test_a_tower_that_is_away_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    recording = RecordingTower()
    recording.close()
    replies = Replies(recording.url)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            replies.sender.offer(a_report())
            assert replies.failures.acquire(timeout=30)
    assert caplog.text.count("does not take reports") == 1


@pytest.fixture
def client(tower: RecordingTower) -> Iterator[Callable[..., TowerClient]]:
    made: list[TowerClient] = []

    def make(token: str = "") -> TowerClient:
        made.append(TowerClient(TowerAddress(url=tower.url, token=token)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_token_is_sent_as_a_bearer(
    tower: RecordingTower, client: Callable[..., TowerClient]
) -> None:
    client("s3cret").post("/ingest/v1/dumps", b'{"id": "x"}')
    assert tower.headers[0]["Authorization"] == "Bearer s3cret"
    assert tower.headers[0]["Content-Type"] == "application/json"


def test_a_connection_that_the_tower_closed_is_made_anew(tower: RecordingTower) -> None:
    client = TowerClient(TowerAddress(url=tower.url))
    client.post("/ingest/v1/dumps", b'{"id": "x"}')
    tower.close()
    again = RecordingTower(tower.port)
    try:
        client.post("/ingest/v1/dumps", b'{"id": "y"}')
        assert [batch["id"] for batch in again.dumps] == ["y"]
    finally:
        client.close()
        again.close()


def test_a_name_that_does_not_exist_is_an_error_in_words() -> None:
    client = TowerClient(TowerAddress(url="http://no-such-host.invalid:1"))
    with pytest.raises(TowerError) as raised:
        client.post("/x", b"")
    assert raised.value.reason
    assert not raised.value.permanent
