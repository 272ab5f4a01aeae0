"""Measures how long a tower blocks its event loop while a large job steps, hangs and is diagnosed.

A real tower with a real store receives the JSON messages of an imagined job's agents: reports while
it steps, reports without steps, dumps of every node in two rounds. Every callback of the loop is
timed, and every full garbage collection. Only the clock is simulated, so that a second of the job
takes as long as its work.

`wall` is the longest time that one callback blocked the loop. It includes garbage collections and
waits for the diagnosing thread to release the interpreter. `cpu` is the longest time of a
callback's own work.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import resource
import sys
import tempfile
import time
from asyncio.events import Handle
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from tests.synthesis.evidence import Maker
from tests.synthesis.faults import LOADING
from tests.synthesis.layout import Layout
from tests.synthesis.messages import write_batches, write_reports
from tests.synthesis.timeline import run
from watchtower.api.intake import decode
from watchtower.app import run_in_processes
from watchtower.evidence.case import Case
from watchtower.policy import Policy
from watchtower.service.daemon import put_off_full_collections
from watchtower.store.sqlite import SqliteStore
from watchtower.tower.clock import Clock
from watchtower.tower.tower import Tower
from watchtower.wire.dumps import DumpBatch, SentBatch
from watchtower.wire.report import Beat, Report

LAYOUTS = {
    "64": Layout(tensor=2, data=8, pipeline=4),
    "1024": Layout(tensor=8, data=16, pipeline=8),
    "16384": Layout(tensor=8, data=128, pipeline=16),
    "131072": Layout(tensor=8, data=1024, pipeline=16),
}
LIMIT_MS = 50.0
OWN = "the benchmark's own"
STEPS = 10
"""Seconds of healthy steps, one per second: enough to learn the pace."""

STALL_S = 7
"""Seconds without a step before the dumps come. The deadline is at 5."""

DIAGNOSED_WITHIN_S = 60.0

CONNECTIONS = 64
"""Batches of dumps in transfer at the same time."""


@dataclass
class Moment:
    """The simulated current time."""

    at: float = 1000.0


@dataclass(frozen=True)
class MovedClock(Clock):
    """A clock that the benchmark controls."""

    moment: Moment = field(default_factory=Moment)

    def now(self) -> float:
        return self.moment.at

    def wall(self) -> float:
        return 1.7e9 + self.moment.at


@dataclass
class Holds:
    """Milliseconds that callbacks blocked the loop, by activity of the tower."""

    stage: str = OWN
    counts: Counter[str] = field(default_factory=Counter)
    total: Counter[str] = field(default_factory=Counter)
    wall: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)
    collecting_ms: float = 0.0
    """Milliseconds of garbage collection so far."""
    began: float = 0.0

    def note(self, stage: str, wall_ms: float, cpu_ms: float) -> None:
        if stage == OWN:
            return
        self.counts[stage] += 1
        self.total[stage] += wall_ms
        self.wall[stage] = max(self.wall.get(stage, 0.0), wall_ms)
        self.cpu[stage] = max(self.cpu.get(stage, 0.0), cpu_ms)

    def note_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self.began = time.perf_counter()
            return
        took_ms = 1000 * (time.perf_counter() - self.began)
        self.collecting_ms += took_ms
        if info["generation"] == 2:
            self.note("full collection of garbage", took_ms, took_ms)


@contextmanager
def timing() -> Iterator[Holds]:
    """Time every callback of the loop."""
    holds, plain = Holds(), Handle._run

    def timed(self: Handle) -> None:
        stage, collecting_ms = holds.stage, holds.collecting_ms
        wall, cpu = time.perf_counter(), time.thread_time()
        plain(self)
        took = time.perf_counter() - wall, time.thread_time() - cpu
        collecting_ms = holds.collecting_ms - collecting_ms
        holds.note(stage, 1000 * took[0], 1000 * took[1] - collecting_ms)

    Handle._run = timed  # type: ignore[method-assign]
    gc.callbacks.append(holds.note_collection)
    try:
        yield holds
    finally:
        Handle._run = plain  # type: ignore[method-assign]
        gc.callbacks.remove(holds.note_collection)


class Feed:
    """Sends the messages of agents, one message per callback, like a request."""

    def __init__(self, tower: Tower, clock: MovedClock, holds: Holds) -> None:
        self.tower, self.clock, self.holds = tower, clock, holds
        self._reports = msgspec.json.Decoder(Report)
        self._dumps = msgspec.json.Decoder(DumpBatch)

    async def report(self, bodies: list[bytes]) -> None:
        async with self._stage("a report"):
            for body in bodies:
                self.tower.take_report(decode(body, self._reports))
                await asyncio.sleep(0)

    async def tick(self, stage: str) -> None:
        for _ in range(2):
            self.clock.moment.at += 0.5
            async with self._stage(stage):
                self.tower.tick()
                await asyncio.sleep(0)

    async def dump(self, bodies: list[bytes]) -> None:
        async with self._stage("a batch of dumps"):
            for start in range(0, len(bodies), CONNECTIONS):
                some = bodies[start : start + CONNECTIONS]
                await asyncio.gather(*(self._take(body) for body in some))

    async def _take(self, body: bytes) -> None:
        await self.tower.take_dumps(SentBatch(decode(body, self._dumps), body))

    @asynccontextmanager
    async def _stage(self, stage: str) -> AsyncIterator[None]:
        """Count the callbacks from here on for this stage. Callbacks between two stages are the
        benchmark's.
        """
        self.holds.stage = stage
        await asyncio.sleep(0)
        yield
        self.holds.stage = OWN
        await asyncio.sleep(0)


def write_step(case: Case, step: int, age_s: float) -> list[bytes]:
    beat = Beat(step=step, age_s=age_s, advanced=int(age_s < 1), interval_s=1.0)
    return [msgspec.json.encode(report) for report in write_reports([case], beat)]


async def play(case: Case, path: Path) -> tuple[Holds, str]:
    """Run the job's last seconds on a tower; return the times and its verdict."""
    store = SqliteStore(path)
    clock = MovedClock()
    tower = Tower(Policy(), store, store.recall(), clock, run_in_processes)
    try:
        with timing() as holds:
            feed = Feed(tower, clock, holds)
            for step in range(STEPS):
                bodies = write_step(case, step, 0.1)
                await feed.report(bodies)
                await feed.tick("a tick while it steps")
            for late_s in range(1, STALL_S):
                await feed.report(write_step(case, STEPS - 1, late_s + 0.1))
                await feed.tick("a tick while it hangs")
            for number in (1, 2):
                bodies = [msgspec.json.encode(each) for each in write_batches(case, number)]
                await feed.dump(bodies)
                await feed.report(write_step(case, STEPS - 1, STALL_S + number))
                await feed.tick("a tick with dumps")
            holds.stage = "while it is diagnosed"
            verdict = await _wait_for_verdict(tower, case.job)
        return holds, verdict
    finally:
        await tower.close()
        store.close()


async def _wait_for_verdict(tower: Tower, job: str) -> str:
    until = time.monotonic() + DIAGNOSED_WITHIN_S
    while time.monotonic() < until:
        await asyncio.sleep(0.005)
        live = tower.fleet.jobs[job].judged
        diagnosis = live.watch.diagnosis
        if diagnosis is not None and diagnosis.suspects and not live.is_diagnosing:
            return f"{diagnosis.cause.value} of {[each.rank for each in diagnosis.suspects]}"
    return "no verdict"


def measure(name: str, often: bool) -> tuple[Holds, str, float]:
    """Return the times, the verdict and the megabytes of the process at its peak."""
    layout = LAYOUTS[name]
    rank = layout.size // 3
    case = Maker(layout).make(run(layout, stops={rank: 1}), {rank: LOADING})
    case = replace(case, job="imagined")
    gc.collect()
    gc.freeze()  # the objects of the simulation are not part of a tower
    if not often:
        put_off_full_collections()
    with tempfile.TemporaryDirectory() as folder:
        holds, verdict = asyncio.run(play(case, Path(folder) / "watchtower.db"))
    return holds, verdict, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="1024,16384", help=f"comma-separated: {list(LAYOUTS)}")
    parser.add_argument("--check", action="store_true", help=f"exit 1 over {LIMIT_MS:g} ms of cpu")
    parser.add_argument(
        "--collect-often", action="store_true", help="as Python does by default, to compare"
    )
    args = parser.parse_args()
    is_held = False
    for name in args.sizes.split(","):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            holds, verdict, peak = pool.apply(measure, (name, args.collect_often))
        print(f"{name} ranks: {verdict}, {peak:.0f} MB")
        print(f"  {'the loop is held by':<28} {'times':>6} {'mean ms':>8} {'wall':>8} {'cpu':>8}")
        for stage, times in holds.counts.items():
            mean = holds.total[stage] / times
            print(
                f"  {stage:<28} {times:>6} {mean:8.2f} {holds.wall[stage]:8.1f}"
                f" {holds.cpu[stage]:8.1f}",
                flush=True,
            )
        is_held |= max(holds.cpu.values()) > LIMIT_MS
    return 1 if is_held and args.check else 0


if __name__ == "__main__":
    sys.exit(main())
