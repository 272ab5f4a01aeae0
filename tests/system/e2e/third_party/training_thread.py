"""Training runs in a thread; one rank waits there for a lock that it holds itself."""

import threading

from plain import Star, is_time
from watchtower_heartbeat import beat

guard = threading.Lock()
star = Star()


def publish(step):
    with guard:
        if is_time(step):
            publish(step)


def run():
    for step in range(10_000):
        publish(step)
        star.combine(1.0)
        beat(step)


worker = threading.Thread(target=run, name="trainer")
worker.start()
worker.join()
