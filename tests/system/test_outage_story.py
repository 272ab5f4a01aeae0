"""Three jobs of three users hang on one dead file server: one message, from a real tower."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

import pytest

from tests.alerts.receivers import receiving
from tests.file_server_jobs import FileServerJobs
from tests.system.dead_file_server import FileServerOutage
from tests.system.imagined_agents import get
from tests.system.test_alert_story import BUSY, DIRECT_S, configure
from tests.system.test_dead_file_server import CONFIG
from tests.towers import running_tower
from tests.waiting import wait_until
from watchtower.alerts.notifier import GATHER_S, REGATHER_S
from watchtower.writing.times import read_time

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

OWNERS = ["uid:1000", "uid:1001", "uid:1002"]


def test_an_outage_is_one_message_that_ends_once(tmp_path: Path):
    with receiving() as receiver:
        folder = tmp_path / "tower"
        folder.mkdir()
        config = folder / "watchtower.toml"
        config.write_text(CONFIG + configure(folder, receiver))
        with (
            running_tower(folder, "--config", str(config)) as tower,
            FileServerOutage(tower.url, FileServerJobs(OWNERS)) as server,
        ):

            def have_stepped() -> bool:
                listed = server.listed().values()
                return len(listed) == 3 and all((job["step"] or 0) >= 12 for job in listed)

            wait_until(have_stepped, "every job has stepped", 60)
            server.jobs.hang()
            wait_until(lambda: receiver.accepted, "the message arrives", 60)
            arrived_at = receiver.arrivals[0]
            wait_until(lambda: len(receiver.accepted[-1]["alerts"]) == 3, "all are in it", 60)
            (outage,) = get(tower.url, "/api/v1/outages")["items"]
            assert (outage["open_count"], outage["rank_count"]) == (3, 24)
            assert "watchtower_outages 1.0" in get_text(tower.url)

            message = receiver.accepted[-1]
            opened_at = min(unix_time(one["startsAt"]) for one in message["alerts"])
            print(f"from the first incident to the message: {arrived_at - opened_at:.2f} s")
            assert GATHER_S - 0.5 < arrived_at - opened_at < GATHER_S + DIRECT_S * BUSY
            assert {one["labels"]["training_job"] for one in message["alerts"]} == {
                "job-0",
                "job-1",
                "job-2",
            }
            assert message["commonAnnotations"]["summary"] == (
                "[OUTAGE] mount nfs1:/data: 3 jobs are hung, 24 ranks"
            )

            server.jobs.hung_at = 0.0  # the server is back
            wait_until(lambda: receiver.accepted[-1]["status"] == "resolved", "it ends", 60)
            time.sleep(REGATHER_S + 1)
            assert len({each["groupKey"] for each in receiver.accepted}) == 1
            assert [each["status"] for each in receiver.accepted].count("resolved") == 1
            assert len(receiver.keys) == len(set(receiver.keys))


def unix_time(text: str) -> float:
    return read_time(text).timestamp()


def get_text(url: str) -> str:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        return answer.read().decode()
