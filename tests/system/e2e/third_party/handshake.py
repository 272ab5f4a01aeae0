"""A metrics service accepts the connection and never says hello."""

import socket
import ssl

from plain import Star, is_time
from watchtower_heartbeat import beat

service = socket.create_server(("127.0.0.1", 0))
star = Star()


def upload(step):
    if is_time(step):
        context = ssl.create_default_context()
        context.wrap_socket(
            socket.create_connection(service.getsockname()), server_hostname="localhost"
        )


for step in range(10_000):
    upload(step)
    star.combine(1.0)
    beat(step)
