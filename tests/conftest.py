"""What holds for every test: how properties are judged, which tests share a process, the tiers."""

from __future__ import annotations

import gc

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests import tiers
from tests.properties import register_profiles
from tests.tiers import QUICK

register_profiles()

TOGETHER = {
    "tests/system/e2e/test_cli.py",
    "tests/system/e2e/test_protected.py",
    "tests/system/e2e/test_strangers.py",
    "tests/system/heartbeat/test_auto.py",
}
"""Files whose tests share what costs much to make: one process runs them all. It also runs all
drills of `make test`: they share one tower and two agents."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep the tiers apart."""
    config.pluginmanager.register(tiers)


def pytest_collection_finish() -> None:
    """Exempt modules and collected tests from garbage collection: all of them live to the end.

    Full collections that walk through them took a tenth of the time of all tests.
    """
    gc.collect()
    gc.freeze()


class OneByOne(LoadScopeScheduling):
    """Gives each test to the next free process, but a whole group of those above."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if nodeid in QUICK:
            return "quick"
        return file if file in TOGETHER else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> OneByOne:
    """Called only where tests run in several processes, `-n`."""
    return OneByOne(config, log)
