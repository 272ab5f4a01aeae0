"""One rank waits for a program it has started."""

import subprocess

from common import compute, dist, is_time, join, torch
from watchtower_heartbeat import beat

join()
for step in range(10_000):
    compute()
    if is_time(step):
        subprocess.run(["sleep", "1000"], check=True)
    dist.all_reduce(torch.ones(4))
    beat(step)
