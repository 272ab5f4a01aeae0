"""Native code sleeps on one rank and keeps the interpreter lock meanwhile."""

import ctypes

from common import compute, dist, is_time, join, torch
from watchtower_heartbeat import beat

kernel = ctypes.PyDLL(None)  # unlike CDLL it keeps the GIL during a call


def tokenise(step):
    kernel.sleep(100_000 if is_time(step) else 0)
    return torch.ones(8)


join()
for step in range(10_000):
    compute()
    dist.all_reduce(tokenise(step))
    beat(step)
