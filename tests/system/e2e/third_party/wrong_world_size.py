"""The program of one rank sets another WORLD_SIZE: it waits for a rank that no launcher starts."""

import os

from common import CULPRIT, RANK, dist, join, torch

if RANK == CULPRIT:
    os.environ["WORLD_SIZE"] = str(int(os.environ["WORLD_SIZE"]) + 1)
join()
while True:
    dist.all_reduce(torch.ones(1))
