"""A real tower under floods of one owner: its memory, a victim's dumps and incident, its end."""

from __future__ import annotations

import signal
import sqlite3
import threading
import time
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from tests.system.imagined_agents import ImaginedJob, get, post
from tests.towers import RunningTower, running_tower
from tests.waiting import wait_until
from watchtower.wire.bounds import MAX_DUMPS_BYTES, MAX_NAME, MAX_TEXT
from watchtower.wire.report import Beat, RankVitals, Report

CONFIG = """
[detection]
suspect_floor_s = 1.0
hung_floor_s = 1.0
"""
ATTACKER = "uid:2000"
MB = 1_000_000
BATCHES = 16
"""Largest batches sent: as bodies the most that the account holds, decoded several gigabytes."""

MOST_MB = 1100
"""The most resident memory of the tower: 256 MB of bodies, one decoded message, and SQLite."""

STOPS_WITHIN_S = 3.0


@pytest.fixture
def tower(tmp_path: Path) -> Iterator[RunningTower]:
    config = tmp_path / "watchtower.toml"
    config.write_text(CONFIG)
    with running_tower(tmp_path, "--config", str(config)) as running:
        yield running


def vitals(job: str, rank: int, pid: int, **more) -> RankVitals:
    beat = Beat(step=1, age_s=0.1, exception_text=more.pop("text", ""))
    return RankVitals(
        job=job, rank=rank, pid=pid, start_time=pid, owner=ATTACKER, beat=beat, **more
    )


def send_report(tower: RunningTower, node: str, ranks: list[RankVitals]) -> None:
    report = Report(version=1, node=node, agent_id=node, interval_s=1.0, ranks=tuple(ranks))
    post(tower.url, "/ingest/v1/report", msgspec.json.encode(report))


def largest_batch(number: int) -> bytes:
    """A valid message of 16 MB that takes twelve times as much when it is decoded."""
    logs = ",".join(['"ab"'] * 4000)
    rank = (
        '{"rank":%d,"pid":1,"start_time":1,"kernel":{},"threads":[],"collectives":{"logs":['
        + logs
        + "]}}"
    )
    ranks = ",".join(rank % n for n in range(int(MAX_DUMPS_BYTES / (len(rank) + 20))))
    head = f'{{"version":1,"id":"bad-{number}","node":"n1","job":"bad{number}","owner":"{ATTACKER}"'
    text = f'{head},"round":1,"reason":"","held_s":0,"stacks":[],"ranks":[{ranks}]}}'
    return text.encode()


@contextmanager
def crash_loops(tower: RunningTower) -> Iterator[list[int]]:
    """Two hundred jobs that are other processes in each report, as fast as the tower takes them."""
    stops, sent = threading.Event(), [0]

    def run() -> None:
        while not stops.is_set():
            sent[0] += 1
            ranks = [vitals(f"loop{n}", 0, 1000 * sent[0] + n + 1) for n in range(200)]
            with suppress(OSError):
                send_report(tower, "n2", ranks)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield sent
    finally:
        stops.set()
        thread.join()


def check_victim(tower: RunningTower) -> None:
    """Let a job of another user hang: all its dumps are taken at once, its incident is stored."""
    with ImaginedJob(tower.url, "victim", pids_from=3000) as victim:
        wait_until(lambda: victim.step > 15, "the victim steps")
        victim.hang(2)
        wait_until(lambda: victim.verdict()["status"] == "suspect", "the victim is suspect")
        victim.send_dumps()  # raises if the tower refuses them
        wait_until(lambda: [s["rank"] for s in victim.verdict()["suspects"]] == [2], "it is named")
        wait_until(lambda: victim.verdict()["incident"], "its incident opens")
        assert get(tower.url, "/api/v1/jobs/victim")["dumps"] == {"have": 4, "want": 4}


def peak_bytes(tower: RunningTower) -> int:
    """Return the most memory that the tower's process ever had."""
    status = Path(f"/proc/{tower.process.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    print(f"at most {int(line.split()[1]) // 1000} MB")
    return int(line.split()[1]) * 1024


def stop(tower: RunningTower) -> float:
    """Send SIGTERM; return the seconds until the tower is gone."""
    began = time.monotonic()
    tower.process.send_signal(signal.SIGTERM)
    assert tower.process.wait(30) == 0
    return time.monotonic() - began


def count_stored(folder: Path) -> tuple[int, int]:
    with closing(sqlite3.connect(folder / "data" / "watchtower.db")) as db:
        dumps = "SELECT count(*) FROM dumps WHERE job = 'victim'"
        incidents = "SELECT count(*) FROM incidents WHERE job = 'victim'"
        return db.execute(dumps).fetchone()[0], db.execute(incidents).fetchone()[0]


def test_a_crash_looping_user_delays_no_dumps_no_incident_and_not_the_end(tower, tmp_path):
    with crash_loops(tower) as sent:
        wait_until(lambda: sent[0] > 50, "the attacker's jobs restart")
        check_victim(tower)
        assert sent[0] > 100
        took_s = stop(tower)
    assert took_s < STOPS_WITHIN_S
    assert count_stored(tmp_path) == (2, 1)
    lines = [line for line in tower.log.splitlines() if "job loop" in line]
    assert 0 < len(lines) < 200


def test_the_largest_batches_and_rivals_of_one_user_stay_in_bounds(tower, tmp_path):
    bad = [vitals(f"bad{n}", rank, 1) for n in range(BATCHES) for rank in range(16)]
    send_report(tower, "n1", bad)
    wide = "\U0001f600" * (MAX_TEXT // 4)

    def send(number: int) -> None:
        with suppress(urllib.error.HTTPError):  # what one address may have on its way is bounded
            post(tower.url, "/ingest/v1/dumps", largest_batch(number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(send, range(BATCHES)))
    for number in range(BATCHES):
        name = "\U0001f600" * (MAX_NAME // 2)
        claims = [vitals(f"bad{number}", 0, n + 2, text=wide, wchan=name) for n in range(200)]
        for node in range(5):
            send_report(tower, f"m{number}-{node}", claims)
    check_victim(tower)
    assert peak_bytes(tower) < MOST_MB * MB
    assert stop(tower) < STOPS_WITHIN_S
    assert count_stored(tmp_path) == (2, 1)
