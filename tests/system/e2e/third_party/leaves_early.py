"""One rank believes that it is done and leaves with code 0."""

import os

from common import compute, dist, is_time, join, torch
from watchtower_heartbeat import beat

join()
for step in range(10_000):
    compute()
    if is_time(step):
        os._exit(0)
    dist.all_reduce(torch.ones(4))
    beat(step)
