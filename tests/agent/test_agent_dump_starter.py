"""A stop of a rank for its native functions overlaps with no dump of its job."""

from __future__ import annotations

import os

import pytest

from agent.dumps.dump import DumpRequest
from agent.dumps.starter import DumpStarter
from agent.dumps.triggers import OrderInbox
from agent.dumps.turns import DumpSlots
from agent.procfs import Proc
from agent.ranks.found_rank import FoundRank, JobKey
from agent.ranks.launchers import RankClaim
from agent.ranks.process_table import Process
from agent.watching.watchlist import Watchlist
from watchtower.wire.orders import Order
from watchtower.wire.report import Launch

LAUNCH = Launch(id="l")

J = JobKey("j", "uid:1")
DUMP = Order(id="dump", job="j", expires_s=10.0)
SAMPLE = Order(id="sample", job="j", owner="uid:1", expires_s=10.0, glance=True)
NATIVE = Order(id="native", job="j", expires_s=10.0, ranks=(0,), native=True)
AGAIN = Order(id="again", job="j", expires_s=10.0, ranks=(0,), native=True)
OTHER = Order(id="other", job="k", expires_s=10.0, ranks=(0,), native=True)
NOW = 5.0


class Node:
    """A rank, which is this process, and the dumps that were started."""

    def __init__(self) -> None:
        stat = Proc().stat(os.getpid())
        assert stat is not None
        process = Process(pid=os.getpid(), ppid=1, start_time=stat.start_time, comm="python")
        self.watchlist = Watchlist(Proc(), 1.0)
        self.watchlist.update(
            [
                FoundRank(
                    process=process,
                    job=J,
                    claim=RankClaim(rank=0),
                    page=None,
                    launch=LAUNCH,
                )
            ],
            0.0,
        )
        self.started: list[DumpRequest] = []
        self.starter = DumpStarter(self.watchlist, self.started.append)
        self.inbox = OrderInbox()

    def act(self, *orders: Order) -> list[str]:
        """Receive orders, carry out those that need not wait, and return them."""
        self.inbox.receive(orders, NOW)
        taken, expired = self.inbox.take(NOW, DumpSlots([]), self.starter.must_wait)
        assert not expired
        for order in taken:
            self.starter.carry_out(order, NOW)
        return [order.id for order in taken]

    def end_first(self, now: float) -> None:
        self.starter.end(self.started.pop(0), now)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    monkeypatch.setattr("agent.dumps.starter.time.monotonic", lambda: NOW)
    return Node()


@pytest.mark.parametrize(
    ("running", "later", "waits"),
    [
        (NATIVE, DUMP, True),
        (NATIVE, SAMPLE, True),
        (NATIVE, AGAIN, True),
        (DUMP, NATIVE, True),
        (SAMPLE, NATIVE, True),
        (SAMPLE, DUMP, False),
        (NATIVE, OTHER, False),
        (DUMP, OTHER, False),
    ],
    ids=lambda value: value.id if isinstance(value, Order) else str(value),
)
def test_an_order_waits_for_the_end_of_what_it_would_disturb(node, running, later, waits):
    assert node.act(running) == [running.id]
    assert node.act(later) == ([] if waits else [later.id])
    assert (node.inbox.next_due(DumpSlots([]), node.starter.must_wait) is None) or not waits
    if waits:
        node.end_first(NOW)
        assert node.act() == [later.id], "it is delayed and not dropped"
        assert len(node.started) == 1


@pytest.mark.parametrize("orders", [(NATIVE, DUMP), (DUMP, NATIVE), (NATIVE, AGAIN)])
def test_orders_of_one_reply_wait_for_each_other(node, orders):
    first = node.act(*orders, OTHER)
    assert len(set(first) - {"other"}) == 1
    node.end_first(NOW)
    assert sorted([*first, *node.act()]) == sorted(order.id for order in (*orders, OTHER))


def test_a_passed_deadline_waits_only_for_native_functions(node):
    assert not node.starter.is_busy(J, NOW)
    node.act(DUMP)
    assert not node.starter.is_busy(J, NOW)
    node.end_first(NOW)
    node.act(NATIVE)
    assert node.starter.is_busy(J, NOW)
    assert not node.starter.is_busy(JobKey("j", "uid:2"), NOW)
