"""Settings for every test: how properties are judged, which tests share a process, the tiers."""

from __future__ import annotations

import gc

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests import failures, import_order, tiers
from tests.properties import register_profiles

register_profiles()

gc.disable()
"""Until all tests are collected: a seventh of that time, and nothing of it is garbage."""

TOGETHER = {
    "tests/system/agent/test_agent_gloo_calls.py",
    "tests/system/agent/test_agent_native_places.py",
    "tests/system/cluster/test_cluster.py",
    "tests/system/commands/test_documents.py",
    "tests/system/commands/test_mcp.py",
    "tests/system/deploy/test_distributions.py",
    "tests/system/drills/test_queued_backend.py",
    "tests/system/e2e/test_before_ranks.py",
    "tests/system/e2e/test_cli.py",
    "tests/system/e2e/test_error_texts.py",
    "tests/system/e2e/test_set_up_faults.py",
    "tests/system/e2e/test_protected.py",
    "tests/system/e2e/test_third_party.py",
    "tests/system/heartbeat/test_auto.py",
    "tests/system/heartbeat/test_c_trainer.py",
    "tests/system/heartbeat/test_lightning_hook.py",
    "tests/system/heartbeat/test_torch_hook.py",
    "tests/system/heartbeat/test_transformers_hook.py",
    "tests/system/snapshots/test_single_file.py",
    "tests/system/store/test_postgres_contract.py",
    "tests/system/test_dashboards.py",
    "tests/system/ui/test_hung_job.py",
    "tests/system/ui/test_login.py",
}
"""Files of the system tier whose tests share what costs much to make: one process runs them all."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for goldens."""
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the texts of all goldens and the effects of recordings; never a truth.json",
    )


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return request.config.getoption("--update-golden")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the tiers apart, and let the processes compile different files."""
    config.pluginmanager.register(failures)
    config.pluginmanager.register(tiers)
    config.pluginmanager.register(import_order)


def pytest_collection_finish() -> None:
    """Exempt modules and collected tests from garbage collection: all of them live to the end.

    Full collections that walk through them took a tenth of the time of all tests.
    """
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def patient_stores() -> None:
    """Let stores in the processes of tests be closed however busy the machine and its disk are.

    After the usual second what was saved may be missing, and the lock stays open: that fails a
    later test, in which the garbage collector finds it. No write waits for others: tests save row
    by row, far more often than a tower.
    """
    from watchtower.store import grouped_writes, sql_store

    sql_store.CLOSE_S = 60.0
    grouped_writes.COMMITS = float("inf")


class ByWeight(LoadScopeScheduling):
    """Gives light tests away file by file, and heavy ones one by one, to the next free process.

    A test that stays in process takes a hundredth of a second, about as long as giving it away.
    Tests of the system tier take seconds.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        is_heavy = file.startswith("tests/system/") and file not in TOGETHER
        return nodeid if is_heavy else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByWeight:
    """Called only where tests run in several processes, `-n`."""
    return ByWeight(config, log)
