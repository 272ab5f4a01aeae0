"""The sample of the matrix, by value: its rules, its lot, its rows and its section."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy.cells import (
    NO_EPOCHS,
    RULES,
    Cell,
    all_cells,
    choose,
    count_left_out,
    draw,
    parse_only,
    sensible_cells,
    why_not,
)
from benchmarks.accuracy.healthy import HEALTHY
from benchmarks.accuracy.matrix import MATRIX, cell_of, make_row, tell
from benchmarks.accuracy.matrix_report import points_of_sample, render_sample
from benchmarks.accuracy.report import REPORT
from benchmarks.accuracy.results import read_rows
from benchmarks.accuracy.timeline import (
    find_incident_s,
    find_passing,
    find_right_s,
    find_suspect_s,
    measure_watched_s,
)
from watchtower.drills.catalogue import find_drill
from watchtower.drills.launching import PROGRAMS
from watchtower.drills.moments import MOMENTS
from watchtower.drills.watch import Observed, note_verdict

CELL = Cell(fault="dataloader_sleep", moment="setup", heartbeats=True, log=False, backend="torch")


def say(at_s: float, status: str, cause: str | None = None, *ranks: int, sure: float | None = None):
    return {
        "at_s": at_s,
        "status": status,
        "cause": cause,
        "domain": "data",
        "ranks": list(ranks),
        "confidence": sure,
    }


HISTORY = [
    say(-9.0, "suspect", "busy_loop", 2, sure=0.6),
    say(-7.5, "healthy"),
    say(5.0, "suspect"),
    say(6.0, "suspect", "busy_loop", 1, sure=0.8),
    say(7.0, "suspect", "init_stuck", 3, sure=0.7),
    say(9.0, "hung", "init_stuck", 3, sure=0.9),
]


def make_result(**other: Any) -> dict[str, Any]:
    result = {
        "injected": {"ranks": [3], "cause": "dataloader_stall"},
        "verdict": {
            "suspects": [{"rank": 3}],
            "cause": "init_stuck",
            "domain": "data",
            "status": "hung",
            "confidence": 0.9,
            "summary": "Rank 3 is in `read`.",
        },
        "right_rank": True,
        "reasons": (),
        "history": HISTORY,
    }
    return result | other


def make_cell_row(**other: Any) -> dict[str, Any]:
    row = make_row(CELL, make_result())
    row |= {"commit": "abc", "settings": "default", "date": "2026-01-02"}
    return row | other


def test_every_rule_leaves_cells_out_and_every_moment_and_backend_keeps_some() -> None:
    assert {why for why, count in count_left_out() if count} == set(RULES)
    assert sum(count for _, count in count_left_out()) + len(sensible_cells()) == len(all_cells())
    assert {cell.moment for cell in sensible_cells()} == {moment.name for moment in MOMENTS}
    assert {cell.backend for cell in sensible_cells()} == {"stdlib", "torch", "queued"}
    assert len(sensible_cells()) > 300


def test_only_programs_with_epochs_hang_at_the_end_of_one() -> None:
    for path in PROGRAMS.glob("strangers/*.py"):
        if path.stem != "script":
            is_without = f"stranger_{path.stem}" in NO_EPOCHS
            assert ("EPOCH" not in path.read_text()) == is_without, path


def test_a_larger_sample_contains_the_smaller_one() -> None:
    cells = sensible_cells()
    assert draw(cells, 1)[:20] == draw(list(reversed(cells)), 1)[:20]
    assert draw(cells, 1)[:20] != draw(cells, 2)[:20]
    fewer = [cell for cell in cells if cell.fault != "sigstop"]
    assert [cell for cell in draw(cells, 1) if cell.fault != "sigstop"] == draw(fewer, 1)


def test_a_part_of_the_matrix_is_chosen_by_values() -> None:
    only = parse_only("moment=exit,moment=setup,log=off,backend=torch")
    chosen = choose(sensible_cells(), only)
    assert {(cell.moment, cell.log, cell.backend) for cell in chosen} == {
        ("exit", False, "torch"),
        ("setup", False, "torch"),
    }
    assert choose(sensible_cells(), {}) == sensible_cells()
    with pytest.raises(ValueError, match="not colour"):
        choose([], parse_only("colour=red"))


def test_a_cell_of_the_sample_is_one_that_makes_sense() -> None:
    by_cell = {known.cell: known for known in all_cells()}
    assert why_not(by_cell[CELL]) is None
    no_log = Cell(**{**CELL_FIELDS, "backend": "stdlib", "log": True})
    assert why_not(by_cell[no_log]) == "the standard library's collectives have no log"


CELL_FIELDS = {
    "fault": "dataloader_sleep",
    "moment": "setup",
    "heartbeats": True,
    "log": False,
    "backend": "torch",
}


def test_a_history_tells_when_the_job_was_suspected_and_when_the_verdict_was_right() -> None:
    assert find_suspect_s(HISTORY) == 5.0
    assert find_incident_s(HISTORY) == 9.0
    assert find_incident_s([say(-1.0, "hung"), say(3.0, "ended")]) == 3.0
    assert find_right_s(HISTORY, [3], ["dataloader_stall", "init_stuck"]) == 7.0
    assert find_right_s([*HISTORY, say(20.0, "hung", "busy_loop", 3)], [3], ["init_stuck"]) is None
    assert find_right_s([], [3], ["init_stuck"]) is None


def test_a_job_is_watched_from_the_first_verdict() -> None:
    observed = Observed(job="j", started_at=100.0)
    assert measure_watched_s(observed, 160.0) == 0.0
    for at, status in ((112.0, "starting"), (130.0, "healthy")):
        note_verdict(observed, {"status": status}, at)
    assert measure_watched_s(observed, 160.0) == 48.0


def test_an_accusation_before_the_fault_or_of_an_innocent_rank_is_wrong() -> None:
    passing = find_passing(HISTORY, [3])
    assert [(one["at_s"], one["ranks"], one["for_s"]) for one in passing] == [
        (-9.0, [2], 1.5),
        (6.0, [1], 1.0),
    ]


def test_an_accusation_whose_confidence_changes_is_one_accusation() -> None:
    sure = [0.6, 0.62, 0.7, 0.65]
    history = [
        *(say(1.0 + at / 2, "suspect", "busy_loop", 1, sure=one) for at, one in enumerate(sure)),
        say(3.0, "suspect", "lock_deadlock", 1, sure=0.6),
        say(3.5, "suspect", "lock_deadlock", 2, sure=0.5),
        say(4.0, "healthy"),
    ]
    passing = find_passing(history, [])
    assert [(one["at_s"], one["ranks"], one["for_s"]) for one in passing] == [
        (1.0, [1], 2.5),
        (3.5, [2], 0.5),
    ]
    assert passing[0]["confidence"] == 0.7
    # What has not ended is the last verdict, however often its confidence has changed.
    assert find_passing(history[:4], []) == []


def test_the_row_of_a_cell_knows_the_answers_of_its_moment() -> None:
    row = make_cell_row()
    assert cell_of(row) == CELL
    assert row["expected"] == ["dataloader_stall", "init_stuck"]
    assert (row["right_rank"], row["right_cause"], row["right_domain"]) == (True, True, True)
    assert (row["suspect_s"], row["right_s"], row["incident_s"]) == (5.0, 7.0, 9.0)
    assert (
        tell(row) == "dataloader_sleep setup on off torch: right after 7.0 s, incident after 9.0 s"
    )
    assert "could not run" in tell({**row, "failed": "no compiler"})


def test_the_section_shows_tables_misses_and_what_passed() -> None:
    missed = make_cell_row(
        right_rank=False,
        moment="exit",
        reasons=["accused no rank, expected rank 3"],
        missing=["no collective log"],
        passing=[],
    )
    failed = {
        **CELL_FIELDS,
        "moment": "middle",
        "commit": "abc",
        "settings": "default",
        "date": "2",
        "failed": "x",
    }
    again = {**failed, "moment": "exit", "date": "9"}
    old = make_cell_row(commit="old", date="0", right_rank=False)
    text = render_sample([again, make_cell_row(), old, missed, failed], [])
    assert "2 of " in text
    assert "domain right in 1 (50.0%). 1 more could not run." in " ".join(text.split())
    assert "Commits: `abc` (2)." in text
    assert "| setup | 1 | 1 | 1 | 1 | 1 | 5.0 | 5.0 | 7.0 | 7.0 | 9.0 | 9.0 | 1 |" in text
    assert "- dataloader_sleep at exit, torch, heartbeats on, log off: accused no rank" in text
    assert "It says what is missing: no collective log." in " ".join(text.split())
    assert "accused [1] of busy_loop at 6 s for 1.0 s" in " ".join(text.split())
    assert "None was run" in render_sample([], [])


def test_what_passed_counts_as_wrong_in_the_calibration() -> None:
    healthy = {"passing": [say(9.0, "suspect", "busy_loop", 1, sure=0.5)]}
    points = points_of_sample([make_cell_row()], [healthy])
    assert [(point.confidence, point.is_right) for point in points] == [
        (0.9, True),
        (0.6, False),
        (0.8, False),
        (0.5, False),
    ]


def test_a_fault_that_only_reads_may_come_outside_of_steps() -> None:
    reading = {cell.fault for cell in sensible_cells() if cell.moment == "exit"}
    assert "dataloader_sleep" in reading
    assert "stranger_ddp" in reading
    for drill in map(find_drill, reading):
        assert drill.hangs_anywhere or drill.expected.cause == "dataloader_stall"


def test_the_page_shows_the_sample_in_the_results_file() -> None:

    root = Path(__file__).parents[2]
    section = render_sample(read_rows(root / MATRIX), read_rows(root / HEALTHY))
    page = (root / REPORT).read_text(encoding="utf-8")
    assert section in page, "write it again: python -m benchmarks.accuracy.report"
