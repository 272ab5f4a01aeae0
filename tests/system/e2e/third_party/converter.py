"""One rank waits for a program it has started."""

import subprocess

from plain import Star, is_time
from watchtower_heartbeat import beat

star = Star()
for step in range(10_000):
    if is_time(step):
        subprocess.run(["sleep", "1000"], check=True)
    star.combine(1.0)
    beat(step)
