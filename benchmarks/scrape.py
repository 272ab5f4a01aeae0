"""Measures how long a scrape of /metrics blocks the event loop of a tower with one large job.

The parts of a scrape: `loop` reads the values on the event loop, `thread` makes the page in a
thread. Both are CPU time, the shortest of several tries. The ratio to one check of all jobs, which
the tower makes twice a second, is comparable between machines.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from tests.diagnosers import in_thread
from watchtower.api.metrics import Snapshot, TowerCollector
from watchtower.api.security import Refusals
from watchtower.policy import Policy
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.tower.tower import Tower
from watchtower.wire.report import Beat, RankVitals, Report

_T = TypeVar("_T")

LIMIT_MS = 50.0
TRIES = 5
PER_NODE = 8


@dataclass(frozen=True)
class ScrapeCost:
    """Milliseconds of CPU time, and the size of the page."""

    ranks: int
    tick_ms: float
    loop_ms: float
    thread_ms: float
    series: int

    @property
    def ratio(self) -> float:
        """Time on the event loop, divided by the time of one check of all jobs."""
        return self.loop_ms / self.tick_ms


class _Made(Collector):
    """The families of one snapshot."""

    def __init__(self, collector: TowerCollector, snapshot: Snapshot) -> None:
        self._collector, self._snapshot = collector, snapshot

    def collect(self) -> Iterator[Metric]:
        return self._collector.make(self._snapshot)


def report_of(node: int, ranks: int, step: int) -> Report:
    """Return the report of a node of a job that steps once a second."""
    vitals = tuple(
        RankVitals(
            job="large",
            rank=rank,
            pid=100 + rank,
            start_time=1,
            owner="uid:1",
            world_size=ranks,
            beat=Beat(step=step, age_s=0.1, advanced=1, interval_s=1.0),
        )
        for rank in range(node * PER_NODE, (node + 1) * PER_NODE)
    )
    name = f"n{node}"
    return Report(version=1, node=name, agent_id=name, interval_s=1.0, ranks=vitals)


def measure(ranks: int) -> ScrapeCost:
    """Return the cost of a scrape of one job of `ranks` ranks."""
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder) / "watchtower.db")
        try:
            return asyncio.run(_measure(store, ranks))
        finally:
            store.close()


async def _measure(store: SqliteStore, ranks: int) -> ScrapeCost:
    tower = Tower(Policy(), store, store.recall(), Clock(), in_thread)
    try:
        for step in range(1, 6):
            for node in range(ranks // PER_NODE):
                tower.take_report(report_of(node, ranks, step))
            tower.tick()
            while tower.effects.tasks:  # the first tick reads dumps from the store
                await asyncio.sleep(0.01)
        collector = TowerCollector(tower, Refusals())
        tick_ms, _ = _time(tower.tick)
        loop_ms, snapshot = _time(lambda: list(collector.measure())[-1])
        assert snapshot is not None
        thread_ms, page = _time(lambda: generate_latest(_Made(collector, snapshot)))
        series = sum(line.startswith(b"watchtower_job_") for line in page.splitlines())
        return ScrapeCost(ranks, tick_ms, loop_ms, thread_ms, series)
    finally:
        await tower.close()


def _time(work: Callable[[], _T]) -> tuple[float, _T]:
    took, result = [], work()
    for _ in range(TRIES):
        began = time.thread_time()
        result = work()
        took.append(1000 * (time.thread_time() - began))
    return min(took), result


def main() -> int:
    """Print the cost by number of ranks. Return 1 if one is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", nargs="*", type=int, default=[1024, 16384])
    costs = [measure(ranks) for ranks in parser.parse_args().ranks]
    print("  ranks   check ms   loop ms   thread ms   series of the job   loop / check")
    for cost in costs:
        print(
            f"{cost.ranks:7}{cost.tick_ms:11.1f}{cost.loop_ms:10.1f}{cost.thread_ms:12.1f}"
            f"{cost.series:20}{cost.ratio:15.2f}"
        )
    return int(any(cost.loop_ms > LIMIT_MS for cost in costs))


if __name__ == "__main__":
    sys.exit(main())
