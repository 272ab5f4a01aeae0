"""Drills on the standard-library backend, scaled: real job, agents, tower and py-spy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.side_by_side import Runs, assert_right, names_of_drills, start_drills

pytestmark = [pytest.mark.e2e, pytest.mark.ptrace, pytest.mark.timeout(420)]


@pytest.fixture(scope="module")
def drills(request: pytest.FixtureRequest) -> Iterator[Runs]:
    yield from start_drills(request, "stdlib", at_once=3)


@pytest.mark.parametrize("name", names_of_drills("stdlib"))
def test_the_drill_gets_the_right_rank_and_cause(drills: Runs, name: str):
    assert_right(drills[name].result())
