"""The summary of a large job: its size, and the number of steps that it takes."""

import sys
from dataclasses import replace

import pytest

from tests.synthesis.evidence import Maker
from tests.synthesis.faults import LOADING
from tests.synthesis.layout import Layout
from tests.synthesis.timeline import run
from tests.views.summary.cases import check
from watchtower.diagnoser.summaries import write_summary
from watchtower.diagnosis.diagnosis import diagnose_picture
from watchtower.diagnosis.picture import take_picture
from watchtower.views.case_summary import CELL_BYTES, RankSet, RankState
from watchtower.views.summary import summarize
from watchtower.views.summary.grid import GridRank, build_grid

CALLS_PER_RANK = 100
"""Calls of functions for each further rank: 77 today."""


def imagine(layout):
    stuck = layout.size // 3
    return Maker(layout).make(run(layout, stops={stuck: 1}), {stuck: LOADING})


def count_calls(case):
    """Count the calls of Python and C functions that one summary takes."""
    picture = take_picture(case)
    diagnosis = diagnose_picture(picture)
    calls = 0

    def note(frame, event, arg):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        summarize(picture, diagnosis)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.long
def test_the_number_of_steps_grows_with_the_ranks_and_no_faster():
    small, large = (
        count_calls(imagine(Layout(tensor=4, data=data, pipeline=8))) for data in (20, 40)
    )
    assert (large - small) / 640 <= CALLS_PER_RANK


def test_the_boxes_of_a_large_job_lead_to_the_suspect():
    layout = Layout(tensor=8, data=18, pipeline=4)
    waits = check(imagine(layout)).waits
    end = waits.boxes[-1]
    assert (end.rank_set, end.suspect_ranks, end.layer) == (
        RankSet(text=str(layout.size // 3), count=1),
        str(layout.size // 3),
        0,
    )
    assert sum(box.rank_set.count for box in waits.boxes) == layout.size
    assert all(arrow.source == "collective log" for arrow in waits.arrows)


def test_the_grid_of_16384_ranks_is_three_bytes_a_rank_and_small():
    ranks = [
        GridRank(n, f"gpu-{n // 8:04}", RankState.WAITING, 41, "", "all_reduce, train.py:22")
        for n in range(16_384)
    ]
    ranks[5461] = ranks[5461]._replace(state=RankState.SUSPECT, step=40)
    grid = build_grid(ranks)
    assert len(grid.cells) == 16_384 * CELL_BYTES
    assert grid.cells[5461 * CELL_BYTES + 1] == 1
    assert [group.rank_set.count for group in grid.groups] == [1, 16_383]
    summary = check(imagine(Layout(data=4)))
    assert len(write_summary(replace(summary, ranks=grid))) < 40_000
