"""Ranks that wait three seconds, then end with words of their own: the one they wait for lives."""

import datetime
import sys
import time

from common import compute, dist, is_time, join, torch
from watchtower_heartbeat import beat

PATIENCE = datetime.timedelta(seconds=3)


def exchange(gradients):
    try:
        dist.all_reduce(gradients, async_op=True).wait(PATIENCE)
    except RuntimeError:
        sys.exit("no progress, training is given up")


join()
dist.barrier()
for step in range(10_000):
    compute()
    if is_time(step):
        time.sleep(100_000)
    exchange(torch.ones(4))
    beat(step)
