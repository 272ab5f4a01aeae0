"""Drills on real torchrun, DDP and gloo, scaled, with four ranks."""

from __future__ import annotations

import importlib.util

import pytest

from tests.system.e2e.drilled import SharedEnvironment, names_of_drills

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


@pytest.mark.parametrize("name", names_of_drills("torch"))
def test_the_drill_gets_the_right_rank_and_cause(name: str, shared: SharedEnvironment):
    shared.assert_right(name, "torch")
