"""The last 15 minutes of ranks and GPUs: aligned, bounded, small."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.children import ChildRunner
from agent.collectors.collector import Measured, Reading
from agent.delivery.dump_queue import SERIES_PATH, WaitingDump
from agent.procfs import Proc
from agent.ranks.found_rank import FoundRank, JobKey
from agent.ranks.process_table import Process
from agent.ranks.sources.source import RankClaim
from agent.series import history as bounds
from agent.series.history import History, Ring
from agent.series.reporting import ORDERS, SeriesReporter, encode_series
from tests.properties import examples
from tests.waiting import wait_until
from watchtower.wire.report import (
    Beat,
    Ending,
    EndingKind,
    Launch,
    Movement,
    ProcessState,
    RankVitals,
)
from watchtower.wire.series import MAX_POINTS, Lane, SeriesBatch, SeriesOrder, encode_points

LAUNCH = Launch(id="l")

GPU = "pci:0000:3b:00"
KEY = (100, 1000)

points = st.lists(st.none() | st.integers(-(2**53), 2**53), max_size=200)


def filled(values) -> Ring:
    ring = Ring()
    for value in values:
        ring.push(value)
    return ring


def vitals(step: int = 7, pid: int = 100, rank: int = 3, **more) -> RankVitals:
    more.setdefault("beat", Beat(step=step, age_s=0.0))
    return RankVitals(job="llama", rank=rank, pid=pid, start_time=10 * pid, **more)


def gpu(power: float, *pids: int) -> Measured:
    return Measured(subject=GPU, index=5, pids=pids, readings=(Reading("power", "W", 1.0, power),))


def lane(history: History, name: str, key=KEY) -> list[float | None]:
    found = [lane for one in history.series(3, key) for lane in one.lanes if lane.name == name]
    return found[0].points() if found else []


@examples(100)
@given(points)
def test_a_ring_returns_what_was_pushed(values):
    assert filled(values).points() == values


@examples(100)
@given(points)
def test_a_lane_is_sent_as_differences_and_read_again(values):
    sent = Lane(name="step", unit="", scale=0.5, values=encode_points(values))
    read = msgspec.json.decode(msgspec.json.encode(sent), type=Lane)
    assert read.points() == [None if each is None else each * 0.5 for each in values]


def test_a_ring_has_the_last_15_minutes():
    assert filled(range(5000)).points() == list(range(5000 - MAX_POINTS, 5000))


def test_an_equal_number_takes_one_byte():
    ring = filled([123_456_789] * 5000)
    assert ring.size_bytes < 1.1 * MAX_POINTS


def test_all_lanes_of_a_rank_end_at_the_same_moment():
    history = History()
    moved = Movement(cpu_cores=0.5, read_bytes_per_s=1e6, socket_bytes_per_s=2e6)
    history.record([vitals(7, movement=moved)], [], 10.0)
    history.record([vitals(beat=None)], [], 11.0)
    history.record([vitals(9, state=ProcessState.STOPPED)], [], 12.0)
    assert lane(history, "step") == [7, None, 9]
    assert lane(history, "cpu") == [0.5, 0, 0]
    assert lane(history, "moved") == [3e6, 0, 0]
    assert lane(history, "state") == [ord("?"), ord("?"), ord("T")]


def test_seconds_without_a_report_have_no_point():
    history = History()
    for now in (10.0, 10.4, 13.2):
        history.record([vitals(int(now))], [gpu(500, 100)], now)
    assert lane(history, "step") == [10, None, None, 13]
    assert lane(history, "power") == [500, None, None, 500]


def test_a_gpu_belongs_to_the_ranks_that_use_it_or_used_it_last():
    history = History()
    history.record([vitals(), vitals(pid=200, rank=4)], [gpu(690, 100)], 10.0)
    history.record([vitals(), vitals(pid=200, rank=4)], [gpu(88)], 11.0)
    assert lane(history, "power") == [690, 88]
    assert lane(history, "power", (200, 2000)) == []
    own, used = history.series(3, KEY)
    assert (own.gpu, used.gpu, used.gpu_index) == ("", GPU, 5)


def test_a_rank_that_has_ended_keeps_its_series_for_15_minutes():
    history = History()
    history.record([vitals()], [], 10.0)
    ended = vitals(ended=Ending(kind=EndingKind.EXIT, age_s=1.0, code=1))
    history.record([ended], [], 9.0 + MAX_POINTS)
    assert lane(history, "step")[0] == 7
    history.record([ended], [], 10.0 + MAX_POINTS)
    assert list(history.series(3, KEY)) == []


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300])
def test_what_is_no_number_is_not_measured(value):
    history = History()
    for now in (10.0, 11.0):
        history.record([vitals()], [gpu(value, 100)], now)
    assert lane(history, "power") == []
    assert lane(history, "step") == [7, 7]


def test_many_processes_lose_those_that_ended_first(monkeypatch):
    monkeypatch.setattr(bounds, "MAX_TRACKS", 10)
    history = History()
    for now in range(100):
        history.record([vitals(pid=100 + now)], [], float(now))
    kept = [now for now in range(100) if list(history.series(3, (100 + now, 10 * (100 + now))))]
    assert kept == list(range(90, 100))


def test_the_memory_of_a_full_node_is_small():
    history = History()
    for now in range(2 * MAX_POINTS):
        moved = Movement(cpu_cores=(now * 7919 % 800) / 100, socket_bytes_per_s=now * 7919e6 % 1e9)
        ranks = [vitals(now // 3, pid, movement=moved) for pid in range(100, 108)]
        history.record(ranks, [gpu(now * 7919 % 700, 100)], float(now))
    assert history.size_bytes < 100_000


# ---- Orders ----


def found(pid: int, rank: int, job: str = "llama", owner: str = "uid:1") -> FoundRank:
    process = Process(pid=pid, ppid=1, start_time=10 * pid, comm="python")
    claim = RankClaim(rank=rank, world_size=8)
    return FoundRank(process=process, job=JobKey(job, owner), claim=claim, page=None, launch=LAUNCH)


def order(ident: str = "o1", *ranks: int, **more) -> SeriesOrder:
    more = {"job": "llama", "owner": "uid:1", "incident": "i1", **more}
    return SeriesOrder(id=ident, ranks=ranks or (3,), **more)


class Node:
    def __init__(self) -> None:
        self.sent: list[WaitingDump] = []
        self.reporter = SeriesReporter(
            node="n0", proc=Proc(), deliver=self.sent.append, output_lines=0, runner=ChildRunner()
        )
        self.reporter.record([vitals(), vitals(pid=200, rank=4)], [gpu(690, 100)], 10.0)
        self.ranks = [found(100, 3), found(200, 4), found(300, 3, owner="uid:2")]

    def batches(self, count: int) -> list[SeriesBatch]:
        wait_until(lambda: len(self.sent) == count, f"{count} messages")
        return [msgspec.json.decode(each.body, type=SeriesBatch) for each in self.sent]


def test_an_order_is_answered_once_with_the_ranks_it_names():
    node = Node()
    for _ in range(2):
        node.reporter.carry_out([order()], node.ranks, 10.0)
    (batch,) = node.batches(1)
    assert (batch.incident, batch.job, batch.owner, batch.node) == ("i1", "llama", "uid:1", "n0")
    assert [(one.rank, one.pid, one.gpu) for one in batch.series] == [(3, 100, ""), (3, 100, GPU)]
    assert (node.sent[0].path, node.sent[0].memory_only) == (SERIES_PATH, True)
    assert batch.outputs == ()


def test_an_order_for_ranks_of_another_owner_is_refused():
    node = Node()
    node.reporter.carry_out([order("o1", owner="uid:3"), order("o2", 9)], node.ranks, 10.0)
    node.reporter.carry_out([order("o3", 4)], node.ranks, 10.0)
    (batch,) = node.batches(1)
    assert [one.rank for one in batch.series] == [4]


def test_a_tower_cannot_order_without_end():
    node = Node()
    node.reporter.carry_out([order(f"o{n}") for n in range(50)], node.ranks, 10.0)
    assert len(node.batches(int(ORDERS))) == ORDERS


def test_a_message_that_is_too_long_loses_its_last_series():
    node = Node()
    node.reporter.carry_out([order("o1", 3, 4)], node.ranks, 10.0)
    (batch,) = node.batches(1)
    assert len(batch.series) == 3
    body = encode_series(batch, len(msgspec.json.encode(batch)) - 1)
    assert [one.rank for one in msgspec.json.decode(body, type=SeriesBatch).series] == [3]
