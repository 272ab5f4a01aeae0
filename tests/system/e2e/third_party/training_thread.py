"""Training runs in a thread; one rank waits there for a lock that it holds itself."""

import threading

from common import compute, dist, is_time, join, torch
from watchtower_heartbeat import beat

guard = threading.Lock()


def publish(step):
    with guard:
        if is_time(step):
            publish(step)


def run():
    for step in range(10_000):
        compute()
        publish(step)
        dist.all_reduce(torch.ones(4))
        beat(step)


join()
worker = threading.Thread(target=run, name="trainer")
worker.start()
worker.join()
