"""Simulates an accelerator: the host thread submits work and waits until it is done."""

import random
import time

SPREAD = 2.0  # no step differs from the mean by more than this many times the jitter


class Device:
    def __init__(self, rank, step_s, jitter, host_work_s=0.0):
        self.step_s = step_s
        self.jitter = jitter
        self.host_work_s = host_work_s
        self._random = random.Random(f"{rank}:{time.time_ns()}")

    def synchronize(self, share):
        """Prepare this share of a step on the host, then wait for its kernels."""
        self.prepare(share)
        time.sleep(self.draw(share))

    def prepare(self, share):
        until = time.thread_time() + self.host_work_s * share
        while time.thread_time() < until:
            self._random.random()

    def draw(self, share):
        """Return how many seconds this share takes this time."""
        noise = max(-SPREAD, min(SPREAD, self._random.gauss(0.0, 1.0)))
        return self.step_s * share * (1.0 + self.jitter * noise)
