"""Actors of Ray that train together and have no ranks: one of them hangs.

The job also has a pair of actors that nothing calls, which set their ranks at run time, on workers
that Ray has started before and after it had a job, and one actor alone.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time

import ray

TRAINERS = 4
CULPRIT = 2
HANGS_AT = 20
STEP_S = 0.2


@ray.remote(num_cpus=0)
class Meeting:
    """Where the trainers wait for each other."""

    def __init__(self) -> None:
        self.present: dict[int, list] = {}

    async def enter(self, step: int) -> None:
        count, everyone = self.present.setdefault(step, [0, asyncio.Event()])
        self.present[step][0] = count + 1
        if count + 1 == TRAINERS:
            everyone.set()
        await everyone.wait()


@ray.remote(num_cpus=0)
class Trainer:
    """One of those that train."""

    def __init__(self, number: int, meeting) -> None:
        self.number, self.meeting = number, meeting

    def pid(self) -> int:
        return os.getpid()

    def fit(self) -> None:
        for step in range(100_000):
            until = time.monotonic() + STEP_S
            while time.monotonic() < until:
                self.work(step)
            if self.number == CULPRIT and step == HANGS_AT:
                self.fetch()
            ray.get(self.meeting.enter.remote(step))

    def work(self, step: int) -> int:
        return sum(number % 7 for number in range(100 + step))

    def fetch(self) -> None:
        threading.Event().wait()


@ray.remote(num_cpus=0)
class Ranked:
    """One of a pair that knows its rank, without work."""

    def __init__(self, rank: int) -> None:
        os.environ.update(RANK=str(rank), WORLD_SIZE="2")

    def pid(self) -> int:
        return os.getpid()


def main() -> None:
    # The names of Ray's sockets must be short.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
        # The first two get the workers that Ray has started already.
        first, meeting = Ranked.remote(0), Meeting.remote()
        ranked = [first, Ranked.remote(1)]
        trainers = [Trainer.remote(number, meeting) for number in range(TRAINERS)]
        pids = ray.get([actor.pid.remote() for actor in [*trainers, *ranked]])
        print(*pids, flush=True)
        ray.get([trainer.fit.remote() for trainer in trainers])


if __name__ == "__main__":
    main()
