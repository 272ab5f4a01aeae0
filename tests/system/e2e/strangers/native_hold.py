"""Native code sleeps on one rank and keeps the interpreter lock meanwhile."""

import ctypes

from common import dist, is_time, join, think, torch
from watchtower_heartbeat import beat

kernel = ctypes.PyDLL(None)  # unlike CDLL it keeps the GIL during a call


def tokenise(step):
    kernel.sleep(100_000 if is_time(step) else 0)
    return torch.ones(8)


join()
for step in range(10_000):
    think()
    dist.all_reduce(tokenise(step))
    beat(step)
