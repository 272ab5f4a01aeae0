"""A task of Slurm that steps with its neighbours; SIGUSR1 makes it read its next batch for ever."""

import os
import signal
import socket
import sys
import time

from watchtower_heartbeat import beat  # by the TaskProlog

RANK, SIZE = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
held = []


def read_batch():
    while held:
        time.sleep(3600)


def connect(port):
    if RANK:
        for _ in range(400):
            try:
                return [socket.create_connection(("127.0.0.1", port))]
            except ConnectionRefusedError:
                time.sleep(0.05)
        raise TimeoutError("rank 0 never came")
    with socket.create_server(("127.0.0.1", port), backlog=SIZE) as server:
        return [server.accept()[0] for _ in range(SIZE - 1)]


def all_reduce(links):
    if RANK:
        links[0].sendall(b"x")
        return links[0].recv(1) or sys.exit(0)
    for link in links:
        link.recv(1) or sys.exit(0)
    for link in links:
        link.sendall(b"x")
    return None


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, lambda *_: held.append(1))
    others = connect(int(sys.argv[1]))
    step = 0
    while True:
        read_batch()
        time.sleep(0.1)
        all_reduce(others)
        step += 1
        beat(step)
