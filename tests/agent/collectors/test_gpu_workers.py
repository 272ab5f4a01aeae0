"""The threads that read GPUs: a call that lasts delays no other GPU."""

from __future__ import annotations

import threading
import time

from agent.collectors.gpu.program import Workers
from tests.agent.agent_scene import wait_until


class Gpu:
    """A GPU whose read may block. It is due again at once."""

    def __init__(self) -> None:
        self.due_at = 0.0
        self.reads = 0
        self.returns = threading.Event()
        self.returns.set()
        self.readers = 0

    def read(self, now: float) -> None:
        self.readers += 1
        assert self.readers == 1, "two threads read one GPU"
        self.returns.wait(30)
        self.due_at = time.monotonic() + 0.1
        self.reads += 1
        self.readers -= 1


def count_threads() -> int:
    return sum(thread.name == "gpus" for thread in threading.enumerate())


def watch(workers: Workers, gpus: list[Gpu], reads: int) -> bool:
    workers.watch(time.monotonic())
    return all(gpu.reads >= reads for gpu in gpus)


def test_one_thread_reads_all_and_each_call_that_lasts_costs_one_more():
    before, gpus = count_threads(), [Gpu() for _ in range(8)]
    workers = Workers(gpus)
    wait_until(lambda: watch(workers, gpus, 3), "all are read")
    assert count_threads() == before + 1
    stuck, others = [gpus[2], gpus[5]], [*gpus[:2], *gpus[3:5], *gpus[6:]]
    for gpu in stuck:
        gpu.returns.clear()
    wait_until(lambda: all(gpu.readers for gpu in stuck) or (watch(workers, [], 0) and False), "")
    reads = max(gpu.reads for gpu in others)
    wait_until(lambda: watch(workers, others, reads + 5), "the others are read on")
    wait_until(lambda: count_threads() == before + 3, "one thread reads the others")
    assert all(gpu.readers for gpu in stuck)
    for gpu in stuck:
        gpu.returns.set()
    reads = max(gpu.reads for gpu in gpus)
    wait_until(lambda: watch(workers, gpus, reads + 3), "all are read again")
    wait_until(lambda: count_threads() == before + 1, "the threads that are not needed end")


def test_a_driver_that_answers_nothing_has_a_thread_for_each_gpu_and_one_that_waits():
    before, gpus = count_threads(), [Gpu() for _ in range(4)]
    for gpu in gpus:
        gpu.returns.clear()
    workers = Workers(gpus)
    wait_until(lambda: watch(workers, [], 0) and all(g.readers for g in gpus), "all are stuck")
    for _ in range(50):
        workers.watch(time.monotonic())
    assert count_threads() <= before + 5
    for gpu in gpus:
        gpu.returns.set()
    wait_until(lambda: watch(workers, gpus, 2), "all are read again")
