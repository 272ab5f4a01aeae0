"""Dumps that wait: which is next, which are lost, and what is cut of a batch that is too long."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from agent.clocks import read_moment
from agent.delivery.dump_queue import (
    MAX_WAITING_BATCHES,
    DumpLoss,
    DumpQueue,
    as_waiting,
    encode_batch,
)
from tests.agent.agent_scene import a_dump
from tests.batches import EMPTY_BATCH
from watchtower.wire.bounds import MAX_DUMPS_BYTES, MAX_NAME, MAX_TEXT
from watchtower.wire.collectives import (
    CollectiveRecord,
    PeerTransfers,
    ProcessGroup,
    RankCollectives,
    make_group_log,
)
from watchtower.wire.dumps import ChildDump, DumpBatch, KernelWait, RankDump, ThreadDump
from watchtower.wire.report import ProcessState
from watchtower.wire.stacks import Frame, Stack, make_stack


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


def a_stack(name: str, frames: int = 3, length: int = 30) -> Stack:
    return make_stack(
        tuple(Frame(function=name, file="f" * length, line=line) for line in range(frames))
    )


def a_thread(stack: Stack, *, main: bool = True) -> ThreadDump:
    return ThreadDump(name="MainThread" if main else "side", digest=stack.digest, main=main)


RECORD = CollectiveRecord(number=1, operation="all_reduce", signature="float32[256] " * 60)
LOG = make_group_log(group="g", called=3, entered=3, completed=2, records=(RECORD,))
MAIN, SIDE, CHILD = a_stack("main"), a_stack("side"), a_stack("child")
KERNEL = KernelWait(state=ProcessState.SLEEPING, wchan="futex_do_wait")


def a_batch(ranks: int = 4) -> DumpBatch:
    return replace(
        EMPTY_BATCH,
        id="b1",
        node="n1",
        ranks=tuple(
            RankDump(
                rank=rank,
                pid=rank + 1,
                start_time=1,
                kernel=KERNEL,
                threads=(a_thread(MAIN), a_thread(SIDE, main=False)),
                children=(ChildDump(pid=99, kernel=KERNEL, threads=(a_thread(CHILD),)),),
                collectives=RankCollectives(
                    logs=(LOG.digest,), peers=(PeerTransfers(peer=1, sends_begun=1),)
                ),
            )
            for rank in range(ranks)
        ),
        stacks=(MAIN, SIDE, CHILD),
        groups=(ProcessGroup(id="g", members="0-3"),),
        group_logs=(LOG,),
    )


def cut_batch(batch: DumpBatch, limit: int) -> DumpBatch:
    body = encode_batch(batch, limit)
    assert len(body) <= limit
    return msgspec.json.decode(body, type=DumpBatch)


def test_what_fits_is_sent_as_it_is() -> None:
    length = len(msgspec.json.encode(a_batch()))
    assert cut_batch(a_batch(), length) == a_batch()


def test_the_longer_it_is_the_more_goes_and_the_main_stacks_last() -> None:
    seen: list[tuple[str, ...]] = []
    batch, limit = a_batch(), len(msgspec.json.encode(a_batch()))
    while True:
        try:
            batch = cut_batch(a_batch(), limit - 1)
        except AssertionError:
            break
        limit = len(msgspec.json.encode(batch))
        rank = batch.ranks[0]
        stacks = {stack.frames[0].function for stack in batch.stacks}
        seen.append((*sorted(stacks), f"{len(rank.children)}", f"{len(batch.group_logs)}"))
        assert len(batch.ranks) == 4
        assert rank.kernel == KERNEL
        assert len(batch.groups) == len(batch.group_logs)
    assert seen == [
        ("main", "side", "1", "1"),
        ("main", "1", "1"),
        ("main", "0", "1"),
        ("main", "0", "0"),
        ("0", "0"),
    ]
    rank = batch.ranks[0]
    assert rank.failure is not None
    assert rank.collectives is not None
    assert "longer than a tower accepts" in rank.failure.help_text
    assert "longer than a tower accepts" in rank.collectives.failure
    assert rank.collectives.peers


@pytest.mark.long
@pytest.mark.parametrize("length", [1, MAX_TEXT])
def test_a_tower_takes_the_longest_batch(length: int) -> None:
    stacks = tuple(a_stack(f"s{number}", frames=50, length=length) for number in range(1000))
    child = ChildDump(pid=9, kernel=KERNEL, threads=tuple(a_thread(each) for each in stacks[:256]))
    kernel = KernelWait(wchan="w" * MAX_NAME, target="ü" * MAX_TEXT)
    rank = RankDump(rank=0, pid=1, start_time=1, kernel=kernel, children=(child,) * 5)
    batch = a_batch()
    whole = replace(batch, ranks=(*batch.ranks, *(rank,) * 764), stacks=(*batch.stacks, *stacks))
    dump = as_waiting(whole, read_moment())
    sent = dump.message(held_s=86_399.123456789)
    assert len(sent) <= MAX_DUMPS_BYTES
    assert len(msgspec.json.decode(sent, type=DumpBatch).ranks) == 768
