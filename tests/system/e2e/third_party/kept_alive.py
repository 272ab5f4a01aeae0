"""A rank raises, and a thread that is no daemon keeps its process."""

import threading
import time

from plain import Star, is_time
from watchtower_heartbeat import beat

star = Star()


def pump():
    while True:
        time.sleep(1)


threading.Thread(target=pump).start()
for step in range(10_000):
    if is_time(step):
        raise KeyError("label_7")
    star.combine(1.0)
    beat(step)
