"""One tower with an open incident, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.hung_jobs import FAST, SmallJob, reporting
from tests.towers import RunningTower, running_tower
from tests.waiting import wait_until
from watchtower.commands.client import TowerClient


@pytest.fixture(scope="session")
def hung_tower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningTower]:
    """Return a tower with one open incident: rank 1 of job `llama` is stopped."""
    folder = tmp_path_factory.mktemp("tower")
    (folder / "tower.toml").write_text(FAST)
    job = SmallJob("llama")
    with running_tower(folder, "--config", str(folder / "tower.toml")) as tower:
        client = TowerClient(tower.url)
        with reporting(tower.url, job):
            wait_until(lambda: any(each["step"] for each in client.jobs()), "a step")
            job.stop()
            wait_until(client.incidents, "an incident")
            yield tower
