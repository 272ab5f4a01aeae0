"""Drills on the standard-library backend, scaled: real job, agents, tower and py-spy."""

from __future__ import annotations

import pytest

from tests.system.e2e.drilled import SharedEnvironment, names_of_drills

pytestmark = [pytest.mark.e2e, pytest.mark.ptrace, pytest.mark.timeout(420)]


@pytest.mark.parametrize("name", names_of_drills("stdlib"))
def test_the_drill_gets_the_right_rank_and_cause(name: str, shared: SharedEnvironment):
    shared.assert_right(name, "stdlib")
