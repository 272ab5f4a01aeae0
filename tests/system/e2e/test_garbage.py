"""Good jobs beside garbage: the short form of benchmarks/garbage.py."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from benchmarks.garbage import send_garbage, verdict_of
from benchmarks.imagined_job import ImaginedJob
from tests.towers import running_tower
from tests.waiting import wait_until
from watchtower.commands.client import TowerClient

pytestmark = pytest.mark.e2e

CLIENTS, EACH_PER_S = 3, 5.0
MOST_MEMORY_BYTES = 600_000_000


def test_a_hang_is_named_while_others_send_garbage(tmp_path: Path):
    spawn = multiprocessing.get_context("spawn")
    fast = str(Path(__file__).with_name("fast.toml"))
    with running_tower(tmp_path, "--config", fast) as tower:
        job, client = ImaginedJob("good", tower.address, step_s=0.5), TowerClient(tower.url)
        job.run(1.0)
        counts = [spawn.Value("Q", 0) for _ in range(CLIENTS)]
        senders = [
            spawn.Process(target=send_garbage, args=(tower.address, n, EACH_PER_S, count))
            for n, count in enumerate(counts)
        ]
        for sender in senders:
            sender.start()
        try:
            wait_until(lambda: all(count.value > 0 for count in counts), "garbage arrives")
            job.run(6.0)
            job.hang()
            job.run(60.0, lambda: bool(verdict_of(client).get("suspects")))
            verdict = verdict_of(client)
            sent = sum(count.value for count in counts)
        finally:
            for sender in senders:
                sender.kill()
                sender.join()
            job.close()
        assert [one["rank"] for one in verdict["suspects"]] == [job.hung_rank]
        assert verdict["cause"] == "dataloader_stall"
        assert sent > CLIENTS * EACH_PER_S
        assert tower.resident_bytes < MOST_MEMORY_BYTES
        assert "Traceback" not in tower.log
