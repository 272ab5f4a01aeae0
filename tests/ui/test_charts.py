"""The geometry of charts: few points, gaps that stay gaps, bands in their places."""

from __future__ import annotations

from watchtower.ui.charts import (
    HEIGHT,
    MARGIN,
    MAX_COLUMNS,
    MAX_GAP,
    WIDTH,
    draw_line,
    find_bands,
    shrink,
)


def places(piece: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (each.split(",") for each in piece.split())]


def test_many_values_become_few_means_and_the_newest_count_in_full():
    assert shrink([1, 2, None]) == [1, 2, None]
    assert shrink([9, 1, 3, None, 5, None, None], 4) == [9, 2, 5, None]
    assert len(shrink([1.0] * 900)) <= MAX_COLUMNS


def test_a_line_goes_from_edge_to_edge_and_stays_in_the_box():
    (piece,) = draw_line("steps", [0, 10, 5], 0, 10).pieces
    low, high = HEIGHT - MARGIN, MARGIN
    assert places(piece) == [(0, low), (WIDTH / 2, high), (WIDTH, (low + high) / 2)]


def test_a_shorter_line_ends_at_the_right_edge():
    (piece,) = draw_line("steps", [1, 1], 0, 1, columns=5).pieces
    assert [x for x, _ in places(piece)] == [0.75 * WIDTH, WIDTH]


def test_a_line_crosses_short_gaps_only():
    gap = [None] * MAX_GAP
    assert len(draw_line("steps", [1, *gap, 1], 0, 1).pieces) == 1
    assert len(draw_line("steps", [1, *gap, None, 1], 0, 1).pieces) == 2


def test_single_and_equal_values_are_drawn():
    (piece,) = draw_line("steps", [None, 3, None], 3, 3).pieces
    assert len(places(piece)) == 2
    assert draw_line("steps", [None], 0, 1).pieces == []
    assert draw_line("steps", [], 0, 1).pieces == []


def test_bands_are_runs_of_one_name():
    names = ["", "save", "save", "", "eval"]
    bands = find_bands("phase", names, frozenset({""}))
    assert [(band.label, band.x, band.width) for band in bands] == [
        ("save", 0.5 / 4 * WIDTH, 2 / 4 * WIDTH),
        ("eval", 3.5 / 4 * WIDTH, 0.5 / 4 * WIDTH),
    ]
    assert find_bands("phase", [], frozenset()) == []
