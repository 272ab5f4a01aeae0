"""Simulates an accelerator: the host thread submits work and waits until it is done."""

import random
import time

SPREAD = 2.0  # no step differs from the mean by more than this many times the jitter


class Device:
    def __init__(self, rank, step_s, jitter):
        self.step_s = step_s
        self.jitter = jitter
        self._random = random.Random(f"{rank}:{time.time_ns()}")

    def synchronize(self, share):
        """Wait for the kernels of this share of a step."""
        time.sleep(self.draw(share))

    def draw(self, share):
        """Return how many seconds this share takes this time."""
        noise = max(-SPREAD, min(SPREAD, self._random.gauss(0.0, 1.0)))
        return self.step_s * share * (1.0 + self.jitter * noise)
