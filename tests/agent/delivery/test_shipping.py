"""Delivery over real HTTP: retries, refusals, replies that make no sense."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from agent.clocks import Moment, read_moment
from agent.delivery.dump_queue import MAX_HELD_S, DumpLoss, DumpQueue
from agent.delivery.shipping import (
    BACKLOG_SPREAD_S,
    REPLY_LIMITS,
    RETRY_SPREAD_S,
    DumpSender,
    ReportSender,
    encode_report,
)
from tests.agent.agent_scene import RecordingTower, a_dump
from tests.batches import EMPTY_BATCH
from tests.waiting import wait_until
from watchtower.access.tokens import ClientToken, find_client_token
from watchtower.access.tower_address import TowerAddress
from watchtower.access.tower_connection import TowerError
from watchtower.access.towers import Towers
from watchtower.wire.bounds import MAX_REPORT_BYTES
from watchtower.wire.dumps import DumpBatch
from watchtower.wire.orders import ReportReply
from watchtower.wire.report import RankVitals, Report

LOST: list[DumpLoss] = []
PROBLEM = b'{"title": "Not this way", "detail": "the node is unknown"}'


def a_batch(batch_id: str = "b1") -> DumpBatch:
    return replace(
        EMPTY_BATCH,
        id=batch_id,
        node="n1",
    )


def a_report(agent_id: str = "a") -> Report:
    return Report(version=1, node="n1", agent_id=agent_id, interval_s=1.0)


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Real pauses are for a simulated hour."""
    if "hour" not in request.node.name:
        monkeypatch.setattr("agent.delivery.shipping.FIRST_BACKOFF_S", 0.02)
        monkeypatch.setattr("agent.delivery.shipping.RETRY_SPREAD_S", 0.02)
        monkeypatch.setattr("agent.delivery.shipping.BACKLOG_SPREAD_S", 0.02)


@pytest.fixture
def dumps(tower: RecordingTower) -> DumpSender:
    sender = DumpSender(
        Towers(TowerAddress(url=tower.url), REPLY_LIMITS),
        DumpQueue(LOST.append),
        LOST.append,
    )
    LOST.clear()
    sender.start()
    return sender


class Replies:
    """A report sender, and what it heard."""

    def __init__(self, url: str) -> None:
        self.heard: list[ReportReply] = []
        self.failures = threading.Semaphore(0)
        self.sender = ReportSender(
            Towers(TowerAddress(url=url), REPLY_LIMITS),
            on_reply=self.heard.append,
            on_failure=self.failures.release,
        )
        self.sender.start()


@pytest.fixture
def replies(tower: RecordingTower) -> Replies:
    return Replies(tower.url)


def test_a_dump_says_how_long_it_was_held(tower: RecordingTower, dumps: DumpSender) -> None:
    now = read_moment()
    dumps.deliver(a_batch(), replace(now, boottime_s=now.boottime_s - 7.0))
    wait_until(lambda: tower.dumps, "the dump arrives")
    assert 7.0 <= tower.dumps[0]["held_s"] < 60.0


def test_a_dump_is_sent_again_until_the_tower_has_it(
    tower: RecordingTower, dumps: DumpSender
) -> None:
    tower.dump_answers = [(503, b""), (429, PROBLEM), (200, b"nonsense"), (200, b'{"id": "x"}')]
    dumps.deliver(a_batch("first"), read_moment())
    dumps.deliver(a_batch("second"), read_moment())
    wait_until(lambda: len(tower.dumps) == 2, "both arrive", patience_s=60.0)
    assert {batch["id"] for batch in tower.dumps} == {"first", "second"}
    assert LOST == []


def test_a_dump_that_the_tower_refuses_is_dropped(
    tower: RecordingTower, dumps: DumpSender, caplog: pytest.LogCaptureFixture
) -> None:
    tower.dump_answers = [(422, PROBLEM)]
    dumps.deliver(a_batch("bad"), read_moment())
    dumps.deliver(a_batch("good"), read_moment())
    wait_until(lambda: tower.dumps, "the next one arrives")
    assert [batch["id"] for batch in tower.dumps] == ["good"]
    assert "dropped: HTTP 422 the node is unknown" in caplog.text
    assert LOST == [DumpLoss.REFUSED]


def test_a_dump_that_the_tower_stumbles_over_does_not_hold_up_the_others(
    tower: RecordingTower, dumps: DumpSender
) -> None:
    answer = tower.answer

    def stumble(path: str, body: dict[str, str], headers: dict[str, str]) -> tuple[int, bytes]:
        return (500, b"") if body["id"] == "bad" else answer(path, body, headers)

    tower.answer = stumble  # type: ignore[method-assign]
    dumps.deliver(a_batch("bad"), read_moment())
    dumps.deliver(a_batch("good"), read_moment())
    wait_until(lambda: tower.dumps, "the next one arrives")


def test_a_dump_that_is_too_old_is_dropped(
    tower: RecordingTower, dumps: DumpSender, caplog: pytest.LogCaptureFixture
) -> None:
    old = Moment(boot_id="another", boottime_s=0.0, wall_s=read_moment().wall_s - MAX_HELD_S - 60)
    dumps.deliver(a_batch("old"), old)
    dumps.deliver(a_batch("new"), read_moment())
    wait_until(lambda: tower.dumps, "the next one arrives")
    assert [batch["id"] for batch in tower.dumps] == ["new"]
    assert LOST == [DumpLoss.TOO_OLD]
    assert "is dropped: 24 h old" in caplog.text


def test_a_reply_is_handed_on(tower: RecordingTower, replies: Replies) -> None:
    tower.orders = [{"id": "o1", "job": "j", "expires_s": 5.0, "newer_field": 1}]
    replies.sender.offer(a_report())
    wait_until(lambda: replies.heard, "the reply comes")
    assert replies.heard[0].orders[0].id == "o1"


def test_a_reply_that_is_equal_to_the_one_before_is_handed_on_only_if_it_has_orders(
    tower: RecordingTower, replies: Replies
) -> None:
    order = {"id": "o1", "job": "j", "expires_s": 5.0}
    for number, (orders, heard) in enumerate([([], 1), ([], 1), ([order], 2), ([order], 3)]):
        tower.orders = orders
        replies.sender.offer(a_report())
        replies.sender.flush(30)
        assert len(tower.reports) == number + 1
        assert len(replies.heard) == heard


@pytest.mark.parametrize(
    "answer",
    [
        (200, b"<html>"),
        (200, b'{"version": 99}'),
        (200, b'{"version": 1, "deadlines": [{"job": "j"}]}'),
        (200, b" " * (REPLY_LIMITS.max_bytes + 1)),
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
    wait_until(lambda: len(tower.reports) == 2, "two reports come")
    assert [report["agent_id"] for report in tower.reports] == ["one", "three"]


def test_a_tower_that_is_away_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    recording = RecordingTower()
    recording.close()
    replies = Replies(recording.url)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            replies.sender.offer(a_report())
            assert replies.failures.acquire(timeout=30)
    assert caplog.text.count("does not accept reports") == 1


@pytest.fixture
def client(tower: RecordingTower) -> Iterator[Callable[..., Towers]]:
    made: list[Towers] = []

    def make(token: ClientToken) -> Towers:
        made.append(Towers(TowerAddress(url=tower.url, token=token), REPLY_LIMITS))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_token_is_sent_as_a_bearer(tower: RecordingTower, client: Callable[..., Towers]) -> None:
    token = find_client_token("", {"WATCHTOWER_TOKEN": "s3cret-s3cret-s3cret"})
    client(token).post("/ingest/v1/dumps", b'{"id": "x"}')
    assert tower.headers[0]["Authorization"] == "Bearer s3cret-s3cret-s3cret"
    assert tower.headers[0]["Content-Type"] == "application/json"


def test_a_token_that_was_changed_is_read_again_when_the_tower_refuses_it(
    tower: RecordingTower, client: Callable[..., Towers], tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.touch(mode=0o600)
    file.write_text("the-first-token-of-all")
    sender = client(find_client_token(str(file), {}))
    file.write_text("the-second-token-of-all")
    tower.dump_answers = [(401, PROBLEM)]
    sender.post("/ingest/v1/dumps", b'{"id": "x"}')
    words = [headers["Authorization"].split("-")[1] for headers in tower.headers]
    assert words == ["first", "second"]


def test_a_token_that_is_refused_is_told_and_costs_no_dump(
    tower: RecordingTower, dumps: DumpSender, caplog: pytest.LogCaptureFixture
) -> None:
    tower.dump_answers = [(401, PROBLEM), (403, PROBLEM)]
    dumps.deliver(a_batch("kept"), read_moment())
    wait_until(lambda: tower.dumps, "the dump arrives", patience_s=60.0)
    assert "dump kept waits for the tower: HTTP 401 the node is unknown" in caplog.text
    assert "dropped" not in caplog.text


def test_a_connection_that_the_tower_closed_is_made_anew(tower: RecordingTower) -> None:
    client = Towers(TowerAddress(url=tower.url), REPLY_LIMITS)
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
    client = Towers(TowerAddress(url="http://no-such-host.invalid:1"), REPLY_LIMITS)
    with pytest.raises(TowerError) as raised:
        client.post("/x", b"")
    assert raised.value.reason
    assert not raised.value.permanent


def test_whatever_goes_wrong_on_the_way_to_the_tower_costs_no_dump() -> None:
    LOST.clear()
    queue = DumpQueue(LOST.append)
    name_with_an_empty_label = TowerAddress(url="http://tower..example:1")
    sender = DumpSender(Towers(name_with_an_empty_label, REPLY_LIMITS), queue, LOST.append)
    queue.put(a_dump())
    pause_s = sender.send_first()
    assert pause_s
    assert (queue.count(), LOST) == (1, [])


def test_a_dump_that_is_damaged_is_dropped_and_the_next_one_is_sent(tower: RecordingTower) -> None:
    LOST.clear()
    queue = DumpQueue(LOST.append)
    sender = DumpSender(Towers(TowerAddress(url=tower.url), REPLY_LIMITS), queue, LOST.append)
    queue.put(a_dump(b"["))
    assert sender.send_first() == 0.0
    assert (queue.count(), LOST) == (0, [DumpLoss.DAMAGED])


@pytest.mark.long
def test_an_hour_without_the_tower_is_two_log_lines_and_every_dump_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour of a clock that the test moves; every try is a real connection that is refused."""
    recording = RecordingTower()
    recording.close()
    client = Towers(TowerAddress(url=recording.url), REPLY_LIMITS)
    now = 0.0
    lost: list[DumpLoss] = []
    queue = DumpQueue(lost.append)
    moment = lambda: Moment(boot_id="b", boottime_s=now, wall_s=now)  # noqa: E731
    dumps = DumpSender(client, queue, lost.append, moment)
    reports = ReportSender(client, on_reply=lambda _: None, on_failure=lambda: None)
    taken, dump_tries, report_tries = 0, 0, 0
    dumps_at = reports_at = 0.0
    with caplog.at_level(logging.INFO):
        while now < 3600:
            if now % 150 == 0:
                dumps.deliver(a_batch(str(taken)), moment())
                taken += 1
            if now >= dumps_at:
                pause_s = dumps.send_first()
                assert pause_s is not None
                dumps_at, dump_tries = now + pause_s, dump_tries + 1
            reports.offer(a_report())
            if now >= reports_at:
                reports.send_newest()
                reports_at, report_tries = now + reports.pause_s(), report_tries + 1
            now += 1.0
        back = RecordingTower(recording.port)
        try:
            gaps = list(iter(dumps.send_first, None))
            reports.offer(a_report())
            reports.send_newest()
        finally:
            client.close()
            back.close()
    assert sorted(int(batch["id"]) for batch in back.dumps) == list(range(taken))
    assert {batch["id"]: batch["held_s"] for batch in back.dumps}["0"] == 3600.0
    assert lost == []
    assert max(gaps) <= BACKLOG_SPREAD_S
    assert sum(gaps) > taken  # old ones come one by one: many agents have some
    assert 3600 / 15 <= dump_tries <= 3600 / 7 + 10  # the pause grows to 7.5 to 15 s
    assert 1200 < report_tries < 2800  # every second one or so: back within seconds
    assert len(caplog.records) == 3 + 1  # away, back; a dump waits, is delivered
    assert RETRY_SPREAD_S <= 2.0


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_tower_that_says_something_else_each_time_does_not_fill_the_log(
    tower: RecordingTower, replies: Replies, caplog: pytest.LogCaptureFixture
) -> None:
    tower.report_answers = [(200, b"[" * number) for number in range(1, 6)]
    for _ in range(5):
        replies.sender.offer(a_report())
        assert replies.failures.acquire(timeout=30)
    assert sum("does not accept reports" in line for line in lines_of(caplog)) == 1


def test_a_report_that_a_tower_would_refuse_goes_without_its_longest_ranks() -> None:
    short = [
        RankVitals(job="good", rank=rank, pid=rank, start_time=1, found_age_s=1.0)
        for rank in range(8)
    ]
    long = [
        RankVitals(job="\U0001f600" * 256, rank=rank, pid=rank, start_time=1, wchan="w" * 256)
        for rank in range(1000)
    ]
    report = Report(
        version=1, node="n", agent_id="a", interval_s=1.0, ranks=(*long[:500], *short, *long[500:])
    )
    body = encode_report(report)
    assert len(body) <= MAX_REPORT_BYTES
    ranks = msgspec.json.decode(body, type=Report).ranks
    assert [rank.rank for rank in ranks if rank.job == "good"] == list(range(8))
    assert len(ranks) > 500
