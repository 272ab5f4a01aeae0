"""The lot of the healthy drills, and their section of the report, by value."""

from __future__ import annotations

import random
from argparse import Namespace
from collections import Counter
from typing import Any

import pytest

from benchmarks.accuracy import healthy
from benchmarks.accuracy.healthy import (
    FAILURES_IN_A_ROW,
    Course,
    choose_drill,
    draw_ranks,
    find_backends,
)
from benchmarks.accuracy.healthy_report import render_healthy
from benchmarks.accuracy.results import Row
from benchmarks.drilling import RUN_DEADLINE_S
from watchtower.drills.catalogue import DRILLS
from watchtower.drills.settings import DrillSettings


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
    here = {drill.name for drill in DRILLS if not drill.is_fault and find_backends(drill)}
    for _ in range(2 * len(here)):
        runs[choose_drill(runs, lot).name] += 1
    assert runs == dict.fromkeys(here, 2)


def test_ranks_are_drawn_from_four_to_eight() -> None:
    lot = random.Random(1)
    drill = next(drill for drill in DRILLS if not drill.is_fault)
    assert {draw_ranks(drill, lot) for _ in range(200)} == {4, 5, 6, 7, 8}
    pairs = next(drill for drill in DRILLS if drill.whole_pairs)
    assert {draw_ranks(pairs, lot) for _ in range(200)} == {4, 6, 8}


def test_incidents_and_accusations_of_the_newest_commit_are_counted() -> None:
    wrong = make_row(incidents=["rank 3 hangs"], accused=[3], status="hung", right=False)
    text = render_healthy([make_row(commit="old", date="2025"), make_row(), wrong])
    assert "0.1 job-hours of drills with nothing wrong, in random order, with 5 to 5 ranks" in text
    assert "| eval_loop | 2 | 3.0 | 1 | 1 | 0 | 1 |" in text
    assert "- eval_loop, torch, 5 ranks, 2026-01-02T03:04:05+00:00: status hung" in text


def test_a_commit_that_ran_for_an_hour_is_shown_and_newer_runs_are_counted() -> None:
    long = make_row(commit="old", date="2025", minutes=61.0)
    text = render_healthy([long, make_row(), make_row(right=False, status="hung")])
    assert "1.0 job-hours of drills" in text
    assert "- Later, at `abc`: 3 minutes, 1 not as wanted." in text
    assert "status hung" in text.partition("Later")[2]


def test_accusations_that_passed_count_if_they_were_shown_for_longer_than_a_step() -> None:
    short = {"at_s": 40.2, "for_s": 0.9, "ranks": [2], "cause": "busy_loop"}
    long = {**short, "for_s": 3.5}
    text = render_healthy([make_row(passing=[short, long])])
    assert "| eval_loop | 1 | 1.5 | 0 | 0 | 1 | 0 |" in text
    assert "accused [2] of busy_loop after 40 s for 3.5 s" in text
    assert "0.9 s" not in text


def test_the_longest_healthy_drill_may_end() -> None:
    assert 1.3 * DrillSettings().idle_s < RUN_DEADLINE_S


def test_small_jobs_have_the_ranks_that_are_asked_for() -> None:
    lot = random.Random(1)
    drill = next(drill for drill in DRILLS if not drill.is_fault)
    assert {draw_ranks(drill, lot, (2, 3)) for _ in range(50)} == {2, 3}


def test_several_threads_stop_at_the_job_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healthy, "_run", lambda *_: make_row(minutes=30.0))
    written: list[Row] = []
    monkeypatch.setattr(healthy, "append_row", lambda row, _: written.append(row))
    course = Course([], {"commit": "new"}, Namespace(seed=1, job_hours=2.0, ranks=(2, 4)))
    for _ in range(3):
        course.run()
    assert course.hours == 2.0
    assert [row["commit"] for row in written] == ["new"] * 4


def test_a_machine_that_cannot_run_drills_ends_the_course(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healthy, "_run", lambda *_: None)
    course = Course([], {}, Namespace(seed=1, job_hours=2.0, ranks=(2, 4)))
    course.run()
    assert (course.failures, course.rows) == (FAILURES_IN_A_ROW, [])


def test_no_healthy_run_is_said_too() -> None:
    assert "None were run" in render_healthy([])
