"""A pipeline of isend() and irecv() in one function, and one rank at a lock in it."""

import threading

from common import RANK, WORLD, compute, dist, is_time, join, torch
from watchtower_heartbeat import beat

lock = threading.Lock()


def exchange(step, values):
    if RANK > 0:
        dist.irecv(values, RANK - 1).wait()
    lock.acquire()
    if not is_time(step):
        lock.release()
    if RANK < WORLD - 1:
        dist.isend(values, RANK + 1).wait()
        dist.irecv(values, RANK + 1).wait()
    if RANK > 0:
        dist.isend(values, RANK - 1).wait()


join()
for step in range(10_000):
    compute()
    exchange(step, torch.ones(8))
    beat(step)
