"""Measures what jobs that restart all the time cost a tower and another user's job.

Imagined jobs of one user begin new attempts at several rates, against a real tower over HTTP.
Beside them the job of another user hangs. Printed for each rate, the first one without restarts:

* attempts that the tower recorded, and the CPU time of the tower,
* seconds from the hang to the right rank, and until two rounds of dumps were confirmed,
* bytes of the database, and seconds from SIGTERM to the end of the tower.
"""

from __future__ import annotations

import argparse
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.garbage import cpu_s
from tests.system.imagined_agents import ImaginedJob, post
from tests.towers import RunningTower, running_tower
from tests.waiting import wait_until
from watchtower.wire.report import Beat, RankVitals, Report

CONFIG = "[detection]\nsuspect_floor_s = 1.0\nhung_floor_s = 1.0\n"
STEPS = 15
"""Steps of the other user's job before it hangs."""
RANKS = 8
REPORTS_PER_S = 1.0
LATE = 1.5
"""With `--check`: a verdict may take this many times as long as without restarts."""


@dataclass
class Outcome:
    """The measurements at one rate."""

    attempts_per_minute: float
    """That the jobs began, each."""
    begun: int
    recorded: int
    """By the tower, for all jobs."""
    right_after_s: float
    dumps_s: float
    tower_cores: float
    database_kb: int
    stopped_after_s: float


class Loops:
    """Jobs of one user on one node. All of them begin a new attempt at the same moments."""

    def __init__(self, tower: RunningTower, jobs: int, per_minute: float) -> None:
        self._tower, self._jobs, self._per_minute = tower, jobs, per_minute
        self._stops = threading.Event()
        self.attempt = 1
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Loops:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stops.set()
        self._thread.join()

    def _run(self) -> None:
        began, reports_per_s = time.monotonic(), max(REPORTS_PER_S, self._per_minute / 60)
        at = began
        while not self._stops.wait(max(0.0, at - time.monotonic())):
            at = max(at + 1 / reports_per_s, time.monotonic())
            self.attempt = 1 + int((time.monotonic() - began) * self._per_minute / 60)
            with suppress(OSError):
                self._report()

    def _report(self) -> None:
        ranks = tuple(
            RankVitals(
                job=f"loop{job}",
                owner="uid:2000",
                rank=rank,
                launched=True,
                pid=self.attempt,
                start_time=job * RANKS + rank + 1,
                beat=Beat(step=1, age_s=0.1),
            )
            for job in range(self._jobs)
            for rank in range(RANKS)
        )
        report = Report(version=1, node="n", agent_id="n", interval_s=1.0, ranks=ranks)
        post(self._tower.url, "/ingest/v1/report", msgspec.json.encode(report))


def measure(per_minute: float, jobs: int, seconds: float) -> Outcome:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = folder / "watchtower.toml"
        config.write_text(CONFIG)
        with running_tower(folder, "--config", str(config)) as tower:
            with Loops(tower, jobs, per_minute) as loops:
                before, began = cpu_s(tower.process.pid), time.monotonic()
                with ImaginedJob(tower.url, "other", pids_from=3000) as other:
                    wait_until(lambda: other.step > STEPS, "the other job steps")
                    time.sleep(max(0.0, began + seconds - time.monotonic()))
                    right_after_s, dumps_s = hang(other)
                cores = (cpu_s(tower.process.pid) - before) / (time.monotonic() - began)
                stopping = time.monotonic()
                tower.process.send_signal(signal.SIGTERM)
                tower.process.wait(60)
                stopped_after_s = time.monotonic() - stopping
            attempts = loops.attempt
        database = folder / "data" / "watchtower.db"
        with closing(sqlite3.connect(database)) as db:
            query = "SELECT sum(number) FROM attempts WHERE job LIKE 'loop%'"
            recorded = db.execute(query).fetchone()[0] or 0
        return Outcome(
            attempts_per_minute=per_minute,
            begun=attempts * jobs,
            recorded=recorded,
            right_after_s=round(right_after_s, 2),
            dumps_s=round(dumps_s, 3),
            tower_cores=round(cores, 3),
            database_kb=database.stat().st_size // 1024,
            stopped_after_s=round(stopped_after_s, 2),
        )


def hang(job: ImaginedJob) -> tuple[float, float]:
    """Hang a job; return the seconds to the right rank, and of the confirmation of its dumps."""
    job.hang(2)
    wait_until(lambda: job.verdict()["status"] == "suspect", "it is suspect")
    began = time.monotonic()
    job.send_dumps()
    dumps_s = time.monotonic() - began
    wait_until(lambda: [each["rank"] for each in job.verdict()["suspects"]] == [2], "it is named")
    return time.monotonic() - job.hung_at, dumps_s


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=100, help=f"that restart, of {RANKS} ranks")
    parser.add_argument("--rates", default="6,60,600", help="attempts per minute of each job")
    parser.add_argument("--seconds", type=float, default=10.0, help="of restarts before the hang")
    parser.add_argument("--check", action="store_true", help="exit 1 if a verdict is late")
    args = parser.parse_args()
    outcomes = []
    for rate in (0.0, *map(float, args.rates.split(","))):
        outcomes.append(measure(rate, args.jobs, args.seconds))
        print("  ".join(f"{k}={v}" for k, v in asdict(outcomes[-1]).items()), flush=True)
    slowest = max(outcome.right_after_s for outcome in outcomes)
    ratio = slowest / outcomes[0].right_after_s
    print(f"beside jobs that restart, a verdict takes at most {ratio:.2f} times as long")
    return 1 if args.check and ratio > LATE else 0


if __name__ == "__main__":
    raise SystemExit(main())
