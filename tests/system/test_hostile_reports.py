"""Valid but false reports in large numbers: the reports of other nodes are answered soon."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from benchmarks import junk
from tests.system.imagined_agents import ImaginedJob, get, post
from tests.towers import RunningTower, running_tower
from tests.waiting import wait_until
from watchtower.wire.report import Report

ADDRESSES = 2
CONNECTIONS = 60
"""Of each address. Each sends a report of 1,024 ranks as soon as the last one is answered."""

ANSWERED_WITHIN_S = 1.5
RANKS = 1024
LINES = "POST /ingest/v1/report HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


async def _flood(address: tuple[str, int], sent: object) -> None:
    body = junk.report("false", junk.one_job(7, RANKS))

    async def keep_sending(number: int) -> None:
        own = (f"127.0.7.{1 + number % ADDRESSES}", 0)
        node = b'"node": "false-%d"' % number
        text = body.replace(b'"node": "false"', node).replace(
            b"invented-7", b"invented-%d" % number
        )
        message = f"{LINES}Content-Length: {len(text)}\r\n\r\n".encode() + text
        while True:
            with suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection(*address, local_addr=own)
                while True:
                    writer.write(message)
                    head = (await reader.readuntil(b"\r\n\r\n")).lower()
                    length = head.partition(b"content-length: ")[2].partition(b"\r")[0]
                    await reader.readexactly(int(length))
                    sent.value += head.startswith(b"http/1.1 200")  # type: ignore[attr-defined]

    await asyncio.gather(*(keep_sending(number) for number in range(ADDRESSES * CONNECTIONS)))


def _run_flood(address: tuple[str, int], sent: object) -> None:
    asyncio.run(_flood(address, sent))


@contextmanager
def flood(tower: RunningTower) -> Iterator[None]:
    """Send false reports from another process until the end of the block."""
    spawn = multiprocessing.get_context("spawn")
    sent = spawn.Value("Q", 0)
    process = spawn.Process(target=_run_flood, args=(tower.address, sent), daemon=True)
    process.start()
    try:
        wait_until(lambda: sent.value > 2 * ADDRESSES * CONNECTIONS, "the flood runs", 120)
        yield
    finally:
        process.terminate()
        process.join()


@pytest.fixture
def tower(tmp_path: Path) -> Iterator[RunningTower]:
    config = tmp_path / "watchtower.toml"
    config.write_text("[detection]\nsuspect_floor_s = 1.0\nhung_floor_s = 1.0\n")
    with running_tower(tmp_path, "--config", str(config)) as running:
        yield running


def test_false_reports_of_a_few_addresses_do_not_delay_the_reports_of_others(tower):
    with ImaginedJob(tower.url, "victim", pids_from=3000) as victim:
        wait_until(lambda: victim.step > 15, "the victim steps")
        with flood(tower):
            took_s = []
            for _ in range(20):
                report = Report(version=1, node="honest", agent_id="a", interval_s=1.0)
                body, began = msgspec.json.encode(report), time.monotonic()
                post(tower.url, "/ingest/v1/report", body)
                took_s.append(time.monotonic() - began)
            victim.hang(2)
            wait_until(lambda: victim.verdict()["status"] == "suspect", "the victim is suspect")
            victim.send_dumps()
            wait_until(
                lambda: [each["rank"] for each in victim.verdict()["suspects"]] == [2], "its rank"
            )
            assert get(tower.url, "/api/v1/jobs/victim")["dumps"] == {"have": 4, "want": 4}
    assert sorted(took_s)[len(took_s) // 2] < ANSWERED_WITHIN_S
