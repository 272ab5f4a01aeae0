"""Which order of a job a node gets when several are placed before it reports."""

from __future__ import annotations

from watchtower.tower.order_book import EXPIRES_S, OrderBook


def placed(*orders: tuple[str, float, bool]) -> OrderBook:
    book = OrderBook()
    for ident, at, glance in orders:
        book.place(["n0"], "llama", ident, at, glance=glance)
    return book


def collected(book: OrderBook, now: float) -> list[str]:
    return [order.id for order in book.collect("n0", now)]


def test_a_newer_order_replaces_an_older_one():
    assert collected(placed(("a", 0.0, False), ("b", 1.0, False)), 2.0) == ["b"]
    assert collected(placed(("a", 0.0, True), ("b", 1.0, False)), 2.0) == ["b"]


def test_a_glance_replaces_no_whole_dump_that_still_counts():
    assert collected(placed(("a", 0.0, False), ("b", 1.0, True)), 2.0) == ["a"]
    late = placed(("a", 0.0, False), ("b", EXPIRES_S, True))
    assert collected(late, EXPIRES_S + 1) == ["b"]
