"""Orders wait for the next report of their node for a limited time, and may replace each other."""

from __future__ import annotations

from watchtower.jobs.ranks import LaunchKey
from watchtower.tower.dispatcher import EXPIRES_S, OrderBook
from watchtower.wire.orders import MAX_ORDERS

AGENT = ("n0", "agent-0")
ASKED = [(AGENT, LaunchKey("llama", "uid:1", "n0", ""))]


def placed(*orders: tuple[str, float, bool]) -> OrderBook:
    book = OrderBook()
    for ident, at, sample in orders:
        book.place(ASKED, ident, at, sample=sample)
    return book


def collected(book: OrderBook, now: float) -> list[str]:
    return [order.id for order in book.collect(AGENT, now)]


def test_a_newer_order_replaces_an_older_one():
    assert collected(placed(("a", 0.0, False), ("b", 1.0, False)), 2.0) == ["b"]
    assert collected(placed(("a", 0.0, True), ("b", 1.0, False)), 2.0) == ["b"]


def test_a_sample_replaces_no_whole_dump_that_still_counts():
    assert collected(placed(("a", 0.0, False), ("b", 1.0, True)), 2.0) == ["a"]
    late = placed(("a", 0.0, False), ("b", EXPIRES_S, True))
    assert collected(late, EXPIRES_S + 1) == ["b"]


def test_an_order_is_handed_out_once_with_the_time_it_has_left():
    book = OrderBook()
    book.place(ASKED, "o1", now=100.0, sample=False)
    (order,) = book.collect(AGENT, now=103.0)
    assert (order.id, order.job, order.owner) == ("o1", "llama", "uid:1")
    assert order.expires_s == EXPIRES_S - 3.0
    assert book.collect(AGENT, now=103.0) == ()


def test_orders_of_agents_that_never_report_again_are_forgotten():
    book = OrderBook()
    book.place(
        [((f"n{number}", "a"), LaunchKey("llama", "", f"n{number}", "")) for number in range(1000)],
        "o1",
        now=100.0,
        sample=False,
    )
    book.place(ASKED, "o2", now=100.0 + EXPIRES_S, sample=False)
    assert list(book._waiting) == [AGENT]


def test_one_owner_s_orders_leave_room_for_those_of_others():
    book = OrderBook()
    for number in range(2 * MAX_ORDERS):
        job = f"sweep{number}"
        book.place([(AGENT, LaunchKey(job, "uid:2", "n0", ""))], job, now=100.0, sample=False)
    book.place(ASKED, "o1", now=100.0, sample=False)
    orders = book.collect(AGENT, now=101.0)
    assert len(orders) == MAX_ORDERS // 2 + 1
    assert orders[-1].id == "o1"


def test_another_agent_under_the_node_s_name_gets_no_order_of_it():
    book = placed(("a", 0.0, False))
    assert book.collect(("n0", "intruder"), now=1.0) == ()
    assert collected(book, now=1.0) == ["a"]


def test_two_launches_of_a_job_on_one_node_have_an_order_each():
    book = OrderBook()
    launches = [LaunchKey("llama", "uid:1", "n0", launch) for launch in ("a", "b")]
    book.place([(AGENT, launch) for launch in launches], "o1", now=100.0, sample=False)
    orders = book.collect(AGENT, now=101.0)
    assert [(order.id, order.launch) for order in orders] == [("o1.a", "a"), ("o1.b", "b")]
