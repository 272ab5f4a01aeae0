"""Drills, scaled, with four ranks: real job, agents, tower and py-spy.

The jobs use the standard library's sockets, real torchrun with DDP and gloo, or the backend
`queued`: its hosts queue collectives and wait in native code.
"""

from __future__ import annotations

import importlib.util

import pytest

from tests.system.e2e.drilled import SharedEnvironment, names_of_drills
from watchtower.drills.launching import why_not

pytestmark = [pytest.mark.e2e, pytest.mark.ptrace]

WHY_NOT_QUEUED = why_not("queued")
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed: `make test-torch` installs it and runs these",
)
needs_queued = pytest.mark.skipif(WHY_NOT_QUEUED is not None, reason=str(WHY_NOT_QUEUED))


@pytest.mark.timeout(420)
@pytest.mark.parametrize("name", names_of_drills("stdlib"))
def test_the_drill_gets_the_right_rank_and_cause(name: str, shared: SharedEnvironment):
    shared.assert_right(name, "stdlib")


@pytest.mark.torch
@needs_torch
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", names_of_drills("torch"))
def test_the_drill_is_right_on_torch(name: str, shared: SharedEnvironment):
    shared.assert_right(name, "torch")


@pytest.mark.torch
@needs_queued
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", names_of_drills("queued"))
def test_the_drill_is_right_on_queued(name: str, shared: SharedEnvironment):
    shared.assert_right(name, "queued")
