"""Orders wait for their node's next report, and not for ever."""

from __future__ import annotations

from watchtower.tower.order_book import EXPIRES_S, OrderBook


def test_an_order_is_handed_out_once_with_the_time_it_has_left():
    book = OrderBook()
    book.place(["n0"], "llama", "o1", now=100.0)
    (order,) = book.collect("n0", now=103.0)
    assert (order.id, order.job, order.expires_s) == ("o1", "llama", EXPIRES_S - 3.0)
    assert book.collect("n0", now=103.0) == ()


def test_orders_of_nodes_that_never_report_again_are_forgotten():
    book = OrderBook()
    book.place([f"n{number}" for number in range(1000)], "llama", "o1", now=100.0)
    book.place(["n0"], "llama", "o2", now=100.0 + EXPIRES_S)
    assert list(book._pending) == ["n0"]
    book.drop("llama")
    book.place([], "gpt", "o3", now=101.0 + EXPIRES_S)
    assert book._pending == {}
