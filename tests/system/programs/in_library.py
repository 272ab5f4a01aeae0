"""The user's step is run by a library, in a function that is only called `run_with_checkpoint`.

The library's folder is the first argument. From step CALM on rank CULPRIT sleeps in its own code.
The others are in DDP's all_reduce, which no Python frame names.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from watchtower_heartbeat import beat

sys.path.insert(0, sys.argv[1])
from fitting import run_with_checkpoint

RANK, CULPRIT = int(os.environ["RANK"]), int(os.environ["CULPRIT"])
CALM = 13


def score(step):
    if RANK == CULPRIT and step == CALM:
        time.sleep(100_000)


def train(step):
    time.sleep(0.2)
    score(step)
    model(torch.ones(4, 8)).sum().backward()
    beat(step)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    run_with_checkpoint(train)
