"""Samples are read by a pool of threads; on one rank a read never comes back."""

import os
from concurrent.futures import ThreadPoolExecutor

from common import compute, dist, is_time, join, torch
from watchtower_heartbeat import beat

nothing, _ = os.pipe()
pool = ThreadPoolExecutor(2)


def decode(step):
    if is_time(step):
        os.read(nothing, 1)
    return 1.0


join()
for step in range(10_000):
    compute()
    sample = torch.tensor([pool.submit(decode, step).result()])
    dist.all_reduce(sample)
    beat(step)
