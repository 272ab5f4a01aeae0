"""The lot of the healthy drills, and their section of the report, by value."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from benchmarks.accuracy.healthy import choose_drill, draw_ranks
from benchmarks.accuracy.healthy_report import render_healthy
from watchtower.drills.catalogue import DRILLS


def make_row(**other: Any) -> dict[str, Any]:
    row = {
        "drill": "eval_loop",
        "backend": "torch",
        "ranks": 5,
        "date": "2026-01-02T03:04:05+00:00",
        "minutes": 1.5,
        "incidents": [],
        "accused": [],
        "status": "healthy",
        "right": True,
        "commit": "abc",
        "settings": "default",
    }
    return row | other


def test_every_healthy_drill_comes_once_before_one_comes_again() -> None:
    lot, runs = random.Random(1), Counter[str]()
    for _ in range(2 * sum(not drill.is_fault for drill in DRILLS)):
        runs[choose_drill(runs, lot).name] += 1
    assert set(runs.values()) == {2}
    assert set(runs) == {drill.name for drill in DRILLS if not drill.is_fault}


def test_ranks_are_drawn_from_four_to_eight() -> None:
    lot = random.Random(1)
    drill = next(drill for drill in DRILLS if not drill.is_fault)
    assert {draw_ranks(drill, lot) for _ in range(200)} == {4, 5, 6, 7, 8}
    pairs = next(drill for drill in DRILLS if drill.whole_pairs)
    assert {draw_ranks(pairs, lot) for _ in range(200)} == {4, 6, 8}


def test_incidents_and_accusations_of_the_newest_commit_are_counted() -> None:
    wrong = make_row(incidents=["rank 3 hangs"], accused=[3], status="hung", right=False)
    text = render_healthy([make_row(commit="old", date="2025"), make_row(), wrong])
    assert "3 minutes of drills with nothing wrong" in text
    assert "| eval_loop | 2 | 3.0 | 1 | 1 | 1 |" in text
    assert "- eval_loop, torch, 5 ranks, 2026-01-02T03:04:05+00:00: status hung" in text


def test_a_commit_that_ran_for_an_hour_is_shown_and_newer_runs_are_counted() -> None:
    long = make_row(commit="old", date="2025", minutes=61.0)
    text = render_healthy([long, make_row(), make_row(right=False, status="hung")])
    assert "61 minutes of drills" in text
    assert "- Later, at `abc`: 3 minutes, 1 not as wanted." in text
    assert "status hung" in text.partition("Later")[2]


def test_no_healthy_run_is_said_too() -> None:
    assert "None were run" in render_healthy([])
