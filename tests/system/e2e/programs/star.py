"""A job that knows nothing of watchtower: every rank sends its part to rank 0 and gets the sum.

SIGUSR1 makes a rank read its next shard for ever, SIGUSR2 lets it go on.
"""

import os
import signal
import socket
import sys
import time

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
held = []


def hold(number, _):
    held[:] = [number] if number == signal.SIGUSR1 else []


def compute():
    until = time.monotonic() + 0.04
    total = 0
    while time.monotonic() < until:
        total += 1
    return 1


def read_shard():
    while held:
        time.sleep(0.05)


def connect(port):
    if RANK:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            try:
                return [socket.create_connection(("127.0.0.1", port))]
            except ConnectionRefusedError:
                time.sleep(0.05)
        raise TimeoutError("rank 0 never came")
    with socket.create_server(("127.0.0.1", port), backlog=SIZE) as server:
        return [server.accept()[0] for _ in range(SIZE - 1)]


def receive(link):
    received = link.recv(8)
    if not received:
        sys.exit(0)  # somebody ended the job
    return int.from_bytes(received, "big")


def all_reduce(links, value):
    if RANK:
        links[0].sendall(value.to_bytes(8, "big"))
        return receive(links[0])
    total = value + sum(receive(link) for link in links)
    for link in links:
        link.sendall(total.to_bytes(8, "big"))
    return total


def train(links):
    while True:
        read_shard()
        value = compute()
        time.sleep(0.03)
        all_reduce(links, value)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, hold)
    signal.signal(signal.SIGUSR2, hold)
    train(connect(int(sys.argv[1])))
