"""The program of one rank sets another MASTER_PORT, at which no process listens."""

import os

from common import CULPRIT, RANK, dist, join, torch

if RANK == CULPRIT:
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
join()
while True:
    dist.all_reduce(torch.ones(1))
