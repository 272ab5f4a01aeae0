"""The steps of a diagnosis: they grow with the ranks, and no faster."""

import sys

import pytest

from benchmarks.diagnosis import EVENTS, imagine
from tests.synthesis.layout import Layout
from watchtower.diagnosis.diagnosis import diagnose


def count_calls(event: str, data: int) -> int:
    """Count the calls of Python and C functions that one diagnosis takes."""
    case = imagine(Layout(tensor=4, data=data, pipeline=4), event)
    calls = 0

    def note(frame, kind, arg):
        nonlocal calls
        calls += kind in ("call", "c_call")

    sys.setprofile(note)
    try:
        diagnose(case)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.long
@pytest.mark.parametrize("event", EVENTS)
def test_twice_as_many_ranks_take_about_twice_as_many_steps(event: str) -> None:
    few, more, many = (count_calls(event, data) for data in (8, 16, 32))
    assert many - more <= 2.2 * (more - few)
