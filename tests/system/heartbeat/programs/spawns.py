"""Starts a spawned worker that beats and then fails; multiprocessing swallows the exception."""

import multiprocessing
import sys

from watchtower_heartbeat import beat


def work(connection):
    beat(1)
    connection.send("beaten")
    connection.recv()
    raise ValueError("in the worker")


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    worker = context.Process(target=work, args=(theirs,))
    worker.start()
    ours.recv()
    print("ready", flush=True)
    print(worker.pid, flush=True)
    for _ in sys.stdin:
        ours.send("fail")
        worker.join()
        print("joined", flush=True)
