"""One rank waits for a program it has started."""

import subprocess

from common import dist, is_time, join, think, torch
from watchtower_heartbeat import beat

join()
for step in range(10_000):
    think()
    if is_time(step):
        subprocess.run(["sleep", "1000"], check=True)
    dist.all_reduce(torch.ones(4))
    beat(step)
