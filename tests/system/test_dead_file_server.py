"""300 jobs of 8 ranks hang at one moment, since their file server has died."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.file_server_jobs import FileServerJobs
from tests.system.dead_file_server import FileServerOutage
from tests.system.imagined_agents import get
from tests.towers import running_tower
from tests.waiting import wait_until

pytestmark = [pytest.mark.timeout(600), pytest.mark.alone]

JOBS = 300
LATER_S = 10.0
"""The last of them may become hung so much later than one job alone. Where nothing else runs it is
0.5 s; all first diagnoses take 0.7 s of CPU time together."""

BLOCKED = ("uninterruptible_io", "3,5")
"""Cause and suspects of each job."""

CONFIG = """
[detection]
suspect_floor_s = 5.0
hung_floor_s = 8.0
moving_floor_s = 8.0
"""


ASK_EVERY_S = 0.5
"""To list 300 jobs takes the tower some milliseconds."""


def wait_for(is_so: Callable[[], bool], what: str) -> None:
    """Wait for a condition that is dear to check."""

    def is_so_now() -> bool:
        time.sleep(ASK_EVERY_S)
        return is_so()

    wait_until(is_so_now, what, 120)


def time_outage(folder: Path, owners: list[str]) -> tuple[float, list[dict]]:
    """Let one job of each of `owners` hang. Return the seconds until the last one is hung, and what
    the tower lists of all incidents then."""
    folder.mkdir()
    config = folder / "watchtower.toml"
    config.write_text(CONFIG)
    with (
        running_tower(folder, "--config", str(config)) as tower,
        FileServerOutage(tower.url, FileServerJobs(owners)) as outage,
    ):

        def have_stepped() -> bool:
            listed = outage.listed().values()
            return len(listed) == len(owners) and all((job["step"] or 0) >= 12 for job in listed)

        wait_for(have_stepped, "every job has stepped")
        outage.jobs.hang()

        def are_hung() -> bool:
            return all(job["status"] == "hung" for job in outage.listed().values())

        wait_for(are_hung, "every job is hung")
        took_s = time.monotonic() - outage.jobs.hung_at

        def incidents() -> list[dict]:
            return get(tower.url, "/api/v1/incidents?limit=1000")["items"]

        # With the second round of dumps the kernel's word outweighs the stacks'.
        def are_right() -> bool:
            return {(one["cause"], one["suspect_ranks"]) for one in incidents()} == {BLOCKED}

        wait_for(are_right, "each job has its cause")
        return took_s, incidents()


def test_each_of_300_jobs_becomes_hung_in_time_and_names_the_mount(tmp_path: Path):
    alone_s, _ = time_outage(tmp_path / "one", ["uid:1000"])
    # One owner has half of them, each other job has an owner of its own.
    users = [f"uid:{1000 + max(0, number - JOBS // 2)}" for number in range(JOBS)]
    took_s, incidents = time_outage(tmp_path / "all", users)
    shared = [one["shared_cause"] for one in incidents]
    assert shared == [{"kind": "mount", "name": "nfs1:/data"}] * JOBS
    assert took_s < alone_s + LATER_S
