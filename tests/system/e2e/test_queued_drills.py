"""Drills whose collectives are queued and whose hosts wait in native code, with four ranks."""

from __future__ import annotations

import pytest

from tests.system.e2e.drilled import SharedEnvironment, names_of_drills
from watchtower.drills.launching import why_not

REASON = why_not("queued")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.e2e,
    pytest.mark.ptrace,
    pytest.mark.timeout(900),
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
]


@pytest.mark.parametrize("name", names_of_drills("queued"))
def test_the_drill_gets_the_right_rank_and_cause(name: str, shared: SharedEnvironment):
    shared.assert_right(name, "queued")
