"""Which tests one process runs together."""

from __future__ import annotations

from tests.tiers import IN_SYSTEM, QUICK

TOGETHER = {
    "tests/system/e2e/test_cli.py",
    "tests/system/e2e/test_protected.py",
    "tests/system/e2e/test_third_party.py",
    "tests/system/heartbeat/test_auto.py",
}
"""Files of the system tier whose tests share what costs much to make: one process runs them all."""


def unit_of(nodeid: str) -> str:
    """Light tests are given away file by file, and heavy ones one by one.

    A test that stays in process takes a hundredth of a second, about as long as giving it away.
    Tests of the system tier take seconds. All drills of `make test` share one tower and two agents.
    """
    file = nodeid.partition("::")[0]
    if nodeid in QUICK:
        return "quick"
    is_heavy = file.startswith(IN_SYSTEM) and file not in TOGETHER
    return nodeid if is_heavy else file
