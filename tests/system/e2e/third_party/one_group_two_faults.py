"""Two ranks of one group stop at once: one takes a lock twice, one sleeps without a word."""

import threading
import time

from common import LAST_GOOD, RANK, WORLD, compute, dist, join, torch
from watchtower_heartbeat import beat

ledger = threading.Lock()


def tally(step):
    with ledger:
        if RANK == 0 and step > LAST_GOOD:
            tally(step)


def cool_down(step):
    if RANK == WORLD - 1 and step > LAST_GOOD:
        time.sleep(100_000)


join()
for step in range(10_000):
    compute()
    tally(step)
    cool_down(step)
    dist.all_reduce(torch.ones(4))
    beat(step)
