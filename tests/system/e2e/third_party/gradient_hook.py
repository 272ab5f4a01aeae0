"""A gradient hook never returns on one rank; the others exchange gradients after backward."""

import threading

from common import compute, dist, is_time, join, torch
from watchtower_heartbeat import beat


class Tail:
    def __init__(self):
        self.step = 0
        self.ready = threading.Event()

    def __call__(self, gradient):
        if is_time(self.step):
            self.ready.wait()
        return gradient * 0.5


join()
weights = torch.zeros(16, requires_grad=True)
tail = Tail()
for step in range(10_000):
    tail.step = step
    compute()
    scaled = weights * 2
    scaled.register_hook(tail)
    scaled.sum().backward()
    dist.all_reduce(weights.grad)
    with torch.no_grad():
        weights -= 0.1 * weights.grad
        weights.grad.zero_()
    beat(step)
