"""Dumps that wait to be sent: which is next, and which are lost when there are too many."""

from __future__ import annotations

import pytest

from agent.delivery.dump_queue import MAX_WAITING_BATCHES, DumpLoss, DumpQueue
from tests.agent.agent_scene import a_dump


def test_no_more_dumps_wait_than_there_is_room_for(caplog: pytest.LogCaptureFixture) -> None:
    lost: list[DumpLoss] = []
    queue = DumpQueue(lost.append)
    dumps = [a_dump() for _ in range(MAX_WAITING_BATCHES + 2)]
    for dump in dumps:
        queue.put(dump)
    assert queue.first() is dumps[2]
    assert lost == [DumpLoss.FULL, DumpLoss.FULL]
    assert "too many dumps are waiting" in caplog.text


def test_dumps_in_memory_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.delivery.dump_queue.MAX_WAITING_BYTES", 1000)
    lost: list[DumpLoss] = []
    queue = DumpQueue(lost.append)
    dumps = [a_dump(body=b"x" * 99) for _ in range(20)]
    for dump in dumps:
        queue.put(dump)
    assert queue.all() == dumps[-10:]
    assert len(lost) == 10


def test_an_owner_of_many_dumps_neither_delays_nor_pushes_out_those_of_others() -> None:
    lost: list[DumpLoss] = []
    queue = DumpQueue(lost.append)
    for _ in range(MAX_WAITING_BATCHES):
        queue.put(a_dump(owner="uid:1"))
    mine = [a_dump(owner="uid:2") for _ in range(2)]
    order = []
    for dump in [*mine, *(a_dump(owner="uid:1") for _ in range(MAX_WAITING_BATCHES))]:
        queue.put(dump)
    while (first := queue.first()) is not None:
        order.append(first)
        if first is mine[0] and order.count(first) == 1:
            queue.postpone(first.id)  # costs a turn
        else:
            queue.remove(first.id)
            if len(order) < 10:  # an owner that always has a dump does not go first
                queue.put(a_dump(owner="uid:3"))
    assert [each.owner for each in order[:8]].count("uid:2") >= 2
    assert {mine[0].id, mine[1].id} <= {each.id for each in order[:8]}
    assert len(lost) == MAX_WAITING_BATCHES + 2


def test_dumps_of_one_owner_are_sent_in_their_order() -> None:
    queue = DumpQueue(list[DumpLoss]().append)
    dumps = [a_dump(owner="uid:1") for _ in range(5)]
    for dump in dumps:
        queue.put(dump)
    for dump in dumps:
        assert queue.first() is dump
        queue.remove(dump.id)
