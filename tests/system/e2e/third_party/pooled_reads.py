"""Samples are read by a pool of threads; on one rank a read never comes back."""

import os
from concurrent.futures import ThreadPoolExecutor

from plain import Star, is_time
from watchtower_heartbeat import beat

nothing, _ = os.pipe()
pool = ThreadPoolExecutor(2)
star = Star()


def decode(step):
    if is_time(step):
        os.read(nothing, 1)
    return 1.0


for step in range(10_000):
    star.combine(pool.submit(decode, step).result())
    beat(step)
