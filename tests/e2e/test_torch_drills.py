"""Drills on real torchrun, DDP and gloo, scaled, with four ranks."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from tests.e2e.side_by_side import Runs, assert_right, names_of_drills, start_drills

pytestmark = [
    pytest.mark.torch,
    pytest.mark.e2e,
    pytest.mark.ptrace,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        importlib.util.find_spec("torch") is None,
        reason="torch is not installed: `make test-torch` installs it and runs these",
    ),
]


@pytest.fixture(scope="module")
def drills(request: pytest.FixtureRequest) -> Iterator[Runs]:
    # Importing torch four times at once keeps two cores busy for seconds.
    yield from start_drills(request, "torch", at_once=2)


@pytest.mark.parametrize("name", names_of_drills("torch"))
def test_the_drill_gets_the_right_rank_and_cause(drills: Runs, name: str):
    assert_right(drills[name].result())
