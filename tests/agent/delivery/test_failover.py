"""An agent with the addresses of several towers, over real HTTP."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import pytest

from agent.delivery.dump_queue import DumpLoss, DumpQueue
from agent.delivery.shipping import DUMPS_REPLY_LIMITS, REPLY_LIMITS, DumpSender
from tests.agent.agent_scene import RecordingTower, a_dump
from tests.waiting import wait_until
from watchtower.access.tower_address import TowerAddress
from watchtower.access.tower_connection import RefusedError, TowerError, UnreachableError
from watchtower.access.towers import FAILOVER_S, STANDBY, TowerChoice, Towers

REPORT, DUMPS = "/ingest/v1/report", "/ingest/v1/dumps"
BODY = b'{"id": "x", "ranks": []}'
ON_STANDBY = (503, json.dumps({"title": STANDBY, "detail": "another tower owns the jobs"}).encode())
OVERLOADED = (429, json.dumps({"title": "Too many", "detail": "later"}).encode())
WRONG = (422, json.dumps({"title": "Invalid", "detail": "no node"}).encode())
STORE_FAILS = (503, json.dumps({"title": "Not available", "detail": "the disk is full"}).encode())


@pytest.fixture
def pair() -> Iterator[tuple[RecordingTower, RecordingTower]]:
    towers = RecordingTower(), RecordingTower()
    yield towers
    for tower in towers:
        tower.close()


def connect(*urls: str, choice: TowerChoice | None = None) -> Towers:
    return Towers(TowerAddress(url=",".join(urls)), REPLY_LIMITS, choice)


def test_a_tower_on_standby_is_passed_over_and_its_successor_is_used_from_then_on(pair) -> None:
    first, second = pair
    client = connect(first.url, second.url)
    first.dump_answers = [ON_STANDBY]
    client.post(DUMPS, BODY)
    client.post(DUMPS, BODY)
    assert (len(first.headers), len(second.dumps)) == (1, 2)
    client.close()


def test_a_tower_that_is_gone_costs_no_message(pair) -> None:
    first, second = pair
    client = connect(first.url, second.url)
    client.post(DUMPS, BODY)
    first.close()
    client.post(DUMPS, BODY)
    assert (len(first.dumps), len(second.dumps)) == (1, 1)
    client.close()


def test_a_tower_that_stands_still_costs_two_seconds_once(pair) -> None:
    first, _ = pair
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = connect(f"http://127.0.0.1:{silent.getsockname()[1]}", first.url)
        began = time.monotonic()
        client.post(DUMPS, BODY)
        assert FAILOVER_S <= time.monotonic() - began < FAILOVER_S + 2
        began = time.monotonic()
        client.post(DUMPS, BODY)
        assert time.monotonic() - began < 1
    client.close()


UNKNOWN = (404, json.dumps({"title": "Not found", "detail": "there is no job x"}).encode())


@pytest.mark.parametrize("refusal", [WRONG, OVERLOADED, UNKNOWN])
def test_what_the_owner_refuses_is_sent_to_no_other_tower(pair, refusal) -> None:
    first, second = pair
    client = connect(first.url, second.url)
    first.dump_answers = [refusal]
    with pytest.raises(RefusedError) as raised:
        client.post(DUMPS, BODY)
    assert raised.value.status == refusal[0]
    assert second.headers == []
    client.close()


def test_dumps_that_a_tower_cannot_store_go_to_one_that_can(pair) -> None:
    first, second = pair
    client = connect(first.url, second.url)
    first.dump_answers = [STORE_FAILS]
    client.post(DUMPS, BODY)
    assert len(second.dumps) == 1
    client.close()


def test_an_error_names_each_tower_and_the_pause_that_one_asked_for(pair) -> None:
    first, second = pair
    client = connect(first.url, second.url)
    first.dump_answers, second.dump_answers = [ON_STANDBY], [ON_STANDBY]
    with pytest.raises(TowerError) as raised:
        client.post(DUMPS, BODY)
    assert all(tower.url in raised.value.reason for tower in pair)
    assert not raised.value.permanent
    client.close()


def test_no_tower_at_all_is_unreachable(pair) -> None:
    for tower in pair:
        tower.close()
    with pytest.raises(UnreachableError):
        connect(*(tower.url for tower in pair)).post(DUMPS, BODY)


def test_dumps_follow_the_reports_to_another_tower_without_their_own_deadline(pair) -> None:
    """The request for dumps may take 20 s. The one for a report has found the owner after 2 s."""
    _, second = pair
    choice, lost = TowerChoice(), list[DumpLoss]()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        urls = f"http://127.0.0.1:{silent.getsockname()[1]},{second.url}"
        slow = DUMPS_REPLY_LIMITS.reply_s
        for_dumps = Towers(TowerAddress(url=urls), DUMPS_REPLY_LIMITS, choice, failover_s=slow)
        queue = DumpQueue(lost.append)
        dumps = DumpSender(for_dumps, queue, lost.append)
        choice.listeners += [for_dumps.follow, lambda _: dumps.ring()]
        began = time.monotonic()
        dumps.start()
        dumps.put(a_dump())
        connect(urls, choice=choice).post(REPORT, BODY)
        wait_until(lambda: second.dumps, "the dump arrives")
        assert time.monotonic() - began < FAILOVER_S + 4 < slow
    assert lost == []


def test_one_address_is_a_connection_as_before(pair) -> None:
    first, _ = pair
    client = connect(first.url)
    first.dump_answers = [(503, b"")]
    with pytest.raises(TowerError, match=r"^HTTP 503$"):
        client.post(DUMPS, BODY)
    client.close()
