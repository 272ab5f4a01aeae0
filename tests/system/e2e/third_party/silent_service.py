"""One rank asks a service that accepts and never answers."""

import socket
import urllib.request

from plain import Star, is_time
from watchtower_heartbeat import beat

silent = socket.create_server(("127.0.0.1", 0))
ADDRESS = f"http://127.0.0.1:{silent.getsockname()[1]}/schedule"
star = Star()


def ask_for_schedule(step):
    if is_time(step):
        with urllib.request.urlopen(ADDRESS) as reply:
            return float(reply.read())
    return 0.1


for step in range(10_000):
    star.combine(ask_for_schedule(step))
    beat(step)
