"""Scores, resuming and the report of the accuracy benchmark, by value."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy.calibration import (
    Point,
    brier,
    calibrate,
    points_of,
    render_calibration,
)
from benchmarks.accuracy.collecting import ask_rank
from benchmarks.accuracy.comparison import LEGEND, render_comparison
from benchmarks.accuracy.report import render
from benchmarks.accuracy.results import append_row, count_runs, key_of, read_rows
from benchmarks.accuracy.run import choose_drills, plan
from benchmarks.accuracy.score import quantile, score


def make_row(*, named: tuple[int, ...] = (3,), right: bool = True, **other: Any) -> dict[str, Any]:
    suspects = [{"rank": rank} for rank in named]
    verdict = {"suspects": suspects, "cause": "busy_loop", "confidence": 0.9, "status": "hung"}
    row = {
        "drill": "busy_loop",
        "backend": "stdlib",
        "ranks": 8,
        "settings": "default",
        "commit": "abc",
        "date": "2026-01-02T03:04:05+00:00",
        "versions": {"python": "3.11.7"},
        "injected": {"ranks": [3], "cause": "busy_loop"},
        "verdict": verdict,
        "fault_to_verdict_s": 5.0,
        "right_rank": right,
        "right_cause": right,
    }
    return row | other


def make_peer(*named: int, why_not: str | None = None, failed: bool = False) -> dict[str, Any]:
    text = "it failed: KeyError" if failed else ""
    told = {"accused": list(named), "cause": None, "said": text}
    return told | {"why_not": why_not, "failed": failed}


def make_live_row(*named: int, **other: Any) -> dict[str, Any]:
    settings = "monitored_barrier: timeout 10 s"
    row = make_row(tool="monitored_barrier", accused=list(named), said="", settings=settings)
    del row["verdict"], row["right_rank"], row["right_cause"]
    return row | other


def test_a_score_counts_right_runs_accused_ranks_and_abstentions() -> None:
    rows = [
        make_row(),
        make_row(named=(2, 3), right=False, fault_to_verdict_s=9.0),
        make_row(named=(), right=False, fault_to_verdict_s=None),
    ]
    got = score(rows)
    assert (got.runs, got.rank_right, got.cause_right) == (3, 1, 1)
    assert (got.accused, got.abstained) == (1.5, 1)
    assert (got.p50_s, got.p95_s) == (5.0, 9.0)


def test_quantiles_are_values_that_were_measured() -> None:
    assert quantile([], 0.5) is None
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.95) == 4.0


def test_calibration_sets_confidence_against_rightness() -> None:
    points = points_of([make_row(), make_row(right=False)])
    band = next(band for band in calibrate(points) if band.points)
    assert (band.low, band.points, band.right, band.mean) == (0.9, 2, 1, 0.9)
    assert brier(points) == pytest.approx((0.01 + 0.81) / 2)
    assert brier([]) is None


def test_a_band_is_judged_only_with_enough_points() -> None:
    sure = [Point(confidence=0.96, is_right=number > 4) for number in range(40)]
    timid = [Point(confidence=0.55, is_right=True)] * 20
    few = [Point(confidence=0.72, is_right=False)]
    text = render_calibration([*sure, *timid, *few])
    assert "| 0.95 to 1.00 | 40 | 88% | 96% | too sure |" in text
    assert "| 0.50 to 0.60 | 20 | 100% | 55% | too timid |" in text
    assert "| 0.70 to 0.80 | 1 | 0% | 72% | few |" in text
    assert "0.60 to 0.70" not in text
    exact = [Point(confidence=0.9, is_right=number > 1) for number in range(20)]
    assert "| 0.90 to 0.95 | 20 | 90% | 90% | calibrated |" in render_calibration(exact)
    bar = next(line for line in render_calibration(exact).splitlines() if line.endswith("#|"))
    assert bar.count("#") == 45


def test_runs_already_there_are_not_planned_again() -> None:
    done, other = make_row(), make_row(commit="def")
    there = count_runs([done, done, other])
    assert plan([key_of(done)], there, 5) == [key_of(done)] * 3
    assert plan([key_of(done)], there, 2) == []
    assert plan([key_of(done)], Counter(), 1) == [key_of(done)]


def test_a_run_of_another_tool_is_none_of_watchtowers() -> None:
    there = count_runs([make_live_row(3)])
    assert plan([key_of(make_row())], there, 1) == [key_of(make_row())]
    assert plan([key_of(make_live_row())], there, 1) == []


def test_a_line_cut_by_a_kill_is_neither_read_nor_built_upon(tmp_path: Path) -> None:
    path = tmp_path / "results" / "accuracy.jsonl"
    append_row(make_row(), path)
    with path.open("a") as file:
        file.write('{"drill": "busy')
    assert read_rows(path) == [make_row()]
    append_row(make_row(commit="def"), path)
    assert [row["commit"] for row in read_rows(path)] == ["abc", "def"]


def test_an_unknown_drill_is_refused() -> None:
    assert choose_drills("stdlib", "busy_loop") == ["busy_loop"]
    with pytest.raises(SystemExit, match="no_such"):
        choose_drills("stdlib", "no_such")


def test_the_report_shows_each_row_and_each_failure_of_the_newest_commit() -> None:
    old = make_row(commit="old", date="2025-01-01T00:00:00+00:00", drill="sigstop")
    text = render([old, make_row(), make_row(named=(1,), right=False)], [], [])
    few = "| busy_loop **(2 runs only)** | stdlib |"
    assert f"{few} 1/2 | 1/2 | 1.0 | 0 | 5.0 | 5.0 |" in text
    assert "injected [3] busy_loop; said [1] busy_loop" in text
    assert "| sigstop" not in text
    assert "sigstop (stdlib)" in text.partition("Without a run: ")[2]
    assert "| 0.90 to 0.95 | 2 | 50% | 90% | few |" in text


def test_a_commit_at_which_more_faults_were_run_often_is_shown_and_newer_runs_are_counted() -> None:
    often = [make_row(commit="old", date="2025-01-01T00:00:00+00:00")] * 5
    text = render([*often, make_row(drill="sigstop"), make_row(named=(1,), right=False)], [], [])
    assert "5 runs of real hung jobs, product at commit `old`" in text
    assert "| busy_loop | stdlib | 5/5 |" in text
    assert "- `abc`: 2 runs of 2 faults: rank right 1/2, cause right 1/2." in text
    assert "injected [3] busy_loop; said [1] busy_loop" in text.partition("later commits")[2]


def test_the_tools_stand_side_by_side_in_one_row_a_fault() -> None:
    peers = {"count_below_leader": make_peer(2, 3), "torchfrtrace": make_peer(failed=True)}
    rows = [make_row(peers=peers)] * 5 + [make_live_row(3), make_live_row()]
    text = render_comparison(rows)
    assert "| fault | watchtower | count_below_leader | torchfrtrace | monitored_barrier |" in text
    assert "| busy_loop | 5/5 ×1.0 | 0/5 ×2.0 | 0/5 –5 | 1/2 ×1.0 –1 |" in text
    assert "| watchtower on the same faults | 5/5 ×1.0 |" in text
    assert "torchfrtrace failed in 5 of 5 runs, 5 times with `it failed: KeyError`" in text
    assert "- **monitored_barrier**: inside the job, timeout 10 s. From the fault" in text
    assert LEGEND in text


def test_a_tool_that_does_not_apply_has_no_score_and_a_reason() -> None:
    peers = {"torchfrtrace": make_peer(why_not="this backend keeps no records")}
    text = render_comparison([make_row(peers=peers)])
    assert "| fault | watchtower |\n" in text
    assert "In 1 run of stdlib not judged by torchfrtrace: this backend keeps no records." in text


def test_an_excuse_of_a_tool_is_no_run_of_it() -> None:
    excuse = make_live_row(why_not="no barrier is reached", fault_to_verdict_s=None)
    text = render_comparison([make_row(), excuse])
    assert "| fault | watchtower |\n" in text
    assert "not judged by monitored_barrier: no barrier is reached." in " ".join(text.split())
    assert "It never named a rank." in text


def test_where_nobody_is_to_blame_silence_is_right_and_failing_is_not() -> None:
    injected = {"ranks": [], "cause": "symmetric_hang"}
    peers = {"stack_majority": make_peer(), "torchfrtrace": make_peer(failed=True)}
    text = render_comparison([make_row(named=(), injected=injected, peers=peers)])
    assert "| busy_loop **(1 run only)** | 1/1 | 1/1 | 0/1 –1 |" in text


def test_a_tool_shows_the_runs_of_the_commit_it_was_last_run_at() -> None:
    live = make_live_row(3, commit="older", date="2025-01-01T00:00:00+00:00")
    text = render([make_row(), live], [], [])
    assert "Runs of monitored_barrier at commit `older`" in text
    assert "1 run of real hung jobs, product at commit `abc`" in text


def test_a_rank_that_is_gone_has_no_dump(tmp_path: Path) -> None:
    assert ask_rank(None, 3, tmp_path) == "its process is gone"
    assert list(tmp_path.iterdir()) == []
