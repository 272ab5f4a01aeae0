"""One rank thinks that it is done and leaves with code 0."""

import os

from common import dist, is_time, join, think, torch
from watchtower_heartbeat import beat

join()
for step in range(10_000):
    think()
    if is_time(step):
        os._exit(0)
    dist.all_reduce(torch.ones(4))
    beat(step)
