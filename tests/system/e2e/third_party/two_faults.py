"""Two halves that never meet; in each one rank stops, for a reason of its own."""

import hashlib
import time

from common import LAST_GOOD, RANK, WORLD, compute, dist, join, torch
from watchtower_heartbeat import beat

join()
HALF = WORLD // 2
halves = [dist.new_group(list(range(HALF))), dist.new_group(list(range(HALF, WORLD)))]
mine = halves[RANK >= HALF]


def load_batch(step):
    if RANK == 0 and step > LAST_GOOD:
        time.sleep(100_000)
    return torch.ones(4)


def find_nonce(step):
    nonce = 0
    while RANK == WORLD - 1 and step > LAST_GOOD:
        hashlib.sha256(str(nonce).encode()).digest()
        nonce += 1


for step in range(10_000):
    compute()
    batch = load_batch(step)
    find_nonce(step)
    dist.all_reduce(batch, group=mine)
    beat(step)
