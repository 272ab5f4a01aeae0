"""What holds for every test: how properties are judged, which tests share a process, the tiers."""

from __future__ import annotations

import gc

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests import import_order, processes, tiers
from tests.properties import register_profiles
from tests.units import unit_of

register_profiles()

gc.disable()
"""Until all tests are collected: a seventh of that time, and nothing of it is garbage."""


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Keep the tiers apart, and run tests in several processes, of either kind."""
    pluginmanager.register(tiers)
    pluginmanager.register(import_order)
    pluginmanager.register(processes)


def pytest_collection_finish() -> None:
    """Exempt modules and collected tests from garbage collection: all of them live to the end.

    Full collections that walk through them took a tenth of the time of all tests.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


class ByUnit(LoadScopeScheduling):
    """Gives units of tests to the processes of `pytest -n`."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByUnit:
    """Called only where tests run in several processes, `-n`."""
    return ByUnit(config, log)
