"""What holds for every test: how properties are judged, and which tests share a process."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# No property has a deadline of its own: the machine may be busy.
settings.register_profile("watchtower", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("watchtower")

TOGETHER = {
    "tests/system/e2e/test_cli.py",
    "tests/system/e2e/test_protected.py",
    "tests/system/e2e/test_strangers.py",
    "tests/system/heartbeat/test_auto.py",
}
"""Files whose tests share what costs much to make: one process runs them all."""


class OneByOne(LoadScopeScheduling):
    """Gives each test to the next free process, but a whole file of those above."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if file in TOGETHER else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> OneByOne:
    """Called only where tests run in several processes, `-n`."""
    return OneByOne(config, log)
