"""The counts and logs of a rank in a round of dumps: as new as its stack, or with a reason."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from watchtower_heartbeat.page import PageView, Transfers

from agent.children import Abandoned, ChildRunner
from agent.dumpers.dumper import Target
from agent.dumpers.flight_recorder import LATE
from agent.dumpers.python_stacks import PythonStacks
from tests.agent.agent_scene import a_taker, a_view
from tests.agent.ranks.test_guarded_reads import Node
from tests.waiting import PATIENCE_S
from watchtower.wire.dumps import RankDump


def received(count: int) -> PageView:
    """Return the page of a rank that has received so many messages of rank 1."""
    row = Transfers(
        peer=1,
        opened_by_send=False,
        sends_begun=0,
        sends_done=0,
        receives_begun=count,
        receives_done=count,
    )
    return a_view(step=count, transfers=(row,))


def a_target(views: Iterable[PageView | None]) -> Target:
    read = iter(views)
    return Target(rank=0, pid=7, start_time=7, read_page=lambda: next(read))


@pytest.fixture
def take(tmp_path: Path) -> Callable[[Target, float], RankDump]:
    node = Node(tmp_path)
    node.start(7)
    taker = a_taker(node.proc, PythonStacks(ChildRunner(), ""))

    def take_one(target: Target, wait_s: float = PATIENCE_S) -> RankDump:
        (dump,) = taker.take([target], deadline=time.monotonic() + wait_s).ranks
        return dump

    return take_one


def test_counts_are_read_when_the_stack_is(take):
    dump = take(a_target([received(3), received(4)]))
    assert dump.collectives is not None
    assert [row.receives_done for row in dump.collectives.peers] == [4]
    assert dump.step == 4


def test_a_page_that_could_not_be_read_is_read_again(take):
    dump = take(a_target([None, received(4)]))
    assert dump.collectives is not None
    assert dump.collectives.peers
    again = take(a_target([received(4), None]))
    assert again.collectives is not None
    assert again.collectives.peers


def test_a_rank_that_was_not_reached_in_time_has_a_reason(take, monkeypatch):
    monkeypatch.setattr(Abandoned, "has_room", lambda *_: False)
    dump = take(a_target([received(4)]))
    assert dump.collectives is not None
    assert dump.collectives.failure == LATE


def test_a_rank_without_any_log_has_no_reason(take):
    assert take(a_target([a_view(step=1), a_view(step=1)])).collectives is None
