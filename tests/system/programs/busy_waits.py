"""Ranks that meet as in MPI: each polls shared memory without a pause until every rank has come.

The memory's last cell names the step from which on rank CULPRIT sleeps for ever. With LONG_S every
rank computes for so many seconds in that step instead, the culprit at a line of its own.
"""

import itertools
import mmap
import os
import sys
import time

from watchtower_heartbeat import beat

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
CULPRIT, LONG_S = int(os.environ["CULPRIT"]), float(os.environ["LONG_S"])
STEP_S = 0.1


def attach(path):
    """Each rank writes its turn into its place of a file that all have mapped."""
    with open(path, "r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 8 * (WORLD + 1))).cast("q")


def combine(board, turn):
    board[RANK] = turn
    # One line, so that every stack of a rank that waits here is the same.
    next(None for _ in itertools.repeat(None) if min(board[:WORLD]) >= turn)


def score(until):
    next(None for _ in itertools.repeat(None) if time.monotonic() >= until)


def rescore(until):
    next(None for _ in itertools.repeat(None) if time.monotonic() >= until)


def settle(until):
    time.sleep(until - time.monotonic())


def step_once(step, last):
    if step != last:
        settle(time.monotonic() + STEP_S)
    elif LONG_S:
        (rescore if RANK == CULPRIT else score)(time.monotonic() + LONG_S)
    elif RANK == CULPRIT:
        settle(time.monotonic() + 100_000)


if __name__ == "__main__":
    board = attach(sys.argv[1])
    for step in itertools.count():
        step_once(step, board[WORLD])
        combine(board, step + 1)
        beat(step)
